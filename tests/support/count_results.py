#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count_results.py LOG [FAILURES]: real tests in a meson testlog.json, "PASSED FAILED SKIPPED".

An executable of Check, a script of Python's unittest or one that speaks TAP counts as its
single tests, anything else as one. Check has no word for a test that could not do its work: it
prints "skipped: REASON" and returns. What failed, and why something was skipped, goes to stderr;
the names of what failed are added to the file FAILURES.
"""

import json
import re
import sys

CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)$", re.M)
TAP = re.compile(r"^(ok|not ok)\b(.*)$", re.M)
FAILED = re.compile(r"^[^ ]+:\d+:[FE]:.*$", re.M)
SKIPPED = re.compile(r"^skipped: .*$", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$", re.M)
TAIL_LINES = 60
NAMES_MAX = 20


def count(test):
    """Returns (passed, failed, skipped) of one executable."""
    out = test.get("stdout", "")
    if test["result"] == "SKIP":
        return 0, 0, 1
    passed = failed = skipped = 0
    for checks, failures, errors in CHECK.findall(out):
        failed += int(failures) + int(errors)
        passed += int(checks) - int(failures) - int(errors)
    if passed:
        skipped = min(passed, len(SKIPPED.findall(out + "\n" + test.get("stderr", ""))))
        passed -= skipped
    for ran, details in UNITTEST.findall(test.get("stderr", "")):
        more = dict(re.findall(r"(\w+)=(\d+)", details))
        bad = int(more.get("failures", 0)) + int(more.get("errors", 0))
        failed += bad
        skipped += int(more.get("skipped", 0))
        passed += int(ran) - bad - int(more.get("skipped", 0))
    if not passed + failed + skipped:
        for verdict, rest in TAP.findall(out):
            skip = "# SKIP" in rest.upper()
            skipped += skip
            passed += verdict == "ok" and not skip
            failed += verdict == "not ok" and not skip
    succeeded = test["result"] in ("OK", "EXPECTEDFAIL")
    if not succeeded and not failed:
        failed = 1
    if succeeded and not passed + failed + skipped:
        passed = 1
    return passed, failed, skipped


def explain(test, failed, skipped):
    """Shows what a reader needs to act on."""
    lines = (test.get("stdout", "") + test.get("stderr", "")).splitlines()
    if skipped and test["result"] == "SKIP":
        print(f"  skipped {test['name']}: {lines[-1] if lines else 'no reason'}", file=sys.stderr)
    elif skipped:
        for line in lines:
            if "# SKIP" in line.upper() or " ... skipped " in line or SKIPPED.match(line):
                print(f"  skipped {test['name']}: {line}", file=sys.stderr)
    if failed:
        print(f"  FAILED {test['name']} ({test['result']})", file=sys.stderr)
        for line in lines[-TAIL_LINES:]:
            print(f"    {line}", file=sys.stderr)


def name_failures(test, path):
    """Adds to the file what failed of one executable, a line each."""
    with open(path, "a", encoding="utf-8") as names:
        print(f"  FAILED {test['name']} ({test['result']})", file=names)
        for line in FAILED.findall(test.get("stdout", ""))[:NAMES_MAX]:
            print(f"    {line}", file=names)


def main(path, failures=None):
    total = [0, 0, 0]
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            test = json.loads(line)
            counts = count(test)
            explain(test, counts[1], counts[2])
            if failures and counts[1]:
                name_failures(test, failures)
            total = [a + b for a, b in zip(total, counts)]
    print(*total)


main(*sys.argv[1:])
