// SPDX-License-Identifier: Apache-2.0
#include "tests/support/flow.h"

int flow_run(const char *name, const TTest *const *tests, unsigned seconds)
{
        Suite *suite = suite_create(name);
        SRunner *runner;
        int n_failed;

        for (; *tests; tests++) {
                TCase *tcase = tcase_create((*tests)->name);

                tcase_set_timeout(tcase, seconds);
                tcase_add_test(tcase, *tests);
                suite_add_tcase(suite, tcase);
        }
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed != 0;
}
