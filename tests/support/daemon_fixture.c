// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/fds.h"
#include "tests/support/scratch.h"
#include "tests/support/wire_client.h"

#define ARGUMENTS_MAX 64

uint64_t daemon_now_ms(void)
{
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void daemon_pause(void)
{
        struct timespec pause = {.tv_nsec = 5000000};

        nanosleep(&pause, NULL);
}

/* ---- configuration ---- */

static void write_config(struct daemon_fixture *fixture)
{
        const struct daemon_options *options = &fixture->options;
        FILE *file = fopen(fixture->config, "we");

        ck_assert_ptr_nonnull(file);
        fprintf(file, "socket:\n  path: %s\n", fixture->socket);
        fprintf(file, "host:\n  bytes: %" PRIu64 "\n  piece_bytes: %" PRIu64 "\n",
                options->piece_bytes * options->n_pieces, options->piece_bytes);
        if (options->nvme_bytes)
                fprintf(file,
                        "nvme:\n  paths: [%s]\n  catalog: %s\n  bytes: %" PRIu64 "\n  write: %s\n",
                        fixture->nvme, fixture->catalog, options->nvme_bytes, options->nvme_write);
        fprintf(file, "index:\n  objects_max: 100000\nmetrics:\n  listen: \"off\"\n");
        fprintf(file, "log:\n  level: debug\n");
        ck_assert_int_eq(fclose(file), 0);
}

static void make_nvme_folder(struct daemon_fixture *fixture)
{
        const char *parent = fixture->options.nvme_folder;

        snprintf(fixture->nvme, sizeof(fixture->nvme), "%s/nvme",
                 parent ? parent : fixture->folder);
        snprintf(fixture->catalog, sizeof(fixture->catalog), "%s/catalog",
                 parent ? parent : fixture->folder);
        if (fixture->options.nvme_bytes)
                ck_assert_int_eq(mkdir(fixture->nvme, 0755), 0);
}

void daemon_fixture_init(struct daemon_fixture *fixture, const struct daemon_options *options)
{
        daemon_fixture_prepare(fixture, options);
        daemon_start(fixture);
}

void daemon_fixture_prepare(struct daemon_fixture *fixture, const struct daemon_options *options)
{
        memset(fixture, 0, sizeof(*fixture));
        if (options)
                fixture->options = *options;
        if (!fixture->options.piece_bytes)
                fixture->options.piece_bytes = UINT64_C(32) << 20;
        if (!fixture->options.n_pieces)
                fixture->options.n_pieces = 2;
        if (!fixture->options.nvme_write)
                fixture->options.nvme_write = "store";
        fixture->n_fds = count_fds();
        scratch_make(fixture->folder, sizeof(fixture->folder));
        /* Another user may come as far as the socket. */
        ck_assert_int_eq(chmod(fixture->folder, 0755), 0);
        snprintf(fixture->socket, sizeof(fixture->socket), "%s/sock", fixture->folder);
        snprintf(fixture->config, sizeof(fixture->config), "%s/conf", fixture->folder);
        snprintf(fixture->log, sizeof(fixture->log), "%s/log", fixture->folder);
        make_nvme_folder(fixture);
        write_config(fixture);
}

/* ---- start ---- */

static void redirect(const char *path, int fd, int flags)
{
        int file = open(path, flags | O_CLOEXEC, 0644);

        if (file < 0 || dup2(file, fd) < 0)
                _exit(126);
}

static void exec_daemon(const struct daemon_fixture *fixture, const char *binary)
{
        const char *arguments[ARGUMENTS_MAX] = {binary, "--config", fixture->config};
        const char *const *override = fixture->options.overrides;
        unsigned n = 3;

        for (; override && *override && n + 3 < ARGUMENTS_MAX; override++) {
                arguments[n++] = "--set";
                arguments[n++] = *override;
        }
        redirect("/dev/null", 0, O_RDONLY);
        redirect(fixture->log, 1, O_WRONLY | O_CREAT | O_APPEND);
        redirect(fixture->log, 2, O_WRONLY | O_CREAT | O_APPEND);
        execv(binary, (char *const *)(uintptr_t)arguments);
        _exit(127);
}

void daemon_launch(struct daemon_fixture *fixture)
{
        const char *binary = getenv("KVTIERD");
        pid_t parent = getpid();
        struct stat log;

        ck_assert_msg(binary != NULL, "KVTIERD does not name the daemon's binary");
        ck_assert_int_eq(fixture->pid, 0);
        fixture->log_start = stat(fixture->log, &log) ? 0 : (long)log.st_size;
        fixture->pid = fork();
        ck_assert_int_ge(fixture->pid, 0);
        if (fixture->pid)
                return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
                exec_daemon(fixture, binary);
        _exit(127);
}

int daemon_wait_end(struct daemon_fixture *fixture)
{
        int status;

        ck_assert_int_eq(waitpid(fixture->pid, &status, 0), fixture->pid);
        fixture->pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void print_log(const struct daemon_fixture *fixture)
{
        char line[2048];
        FILE *file = fopen(fixture->log, "re");

        if (!file)
                return;
        fseek(file, fixture->log_start, SEEK_SET);
        while (fgets(line, sizeof(line), file))
                fprintf(stderr, "  %s", line);
        fclose(file);
}

void daemon_expect_alive(struct daemon_fixture *fixture)
{
        int status;

        if (fixture->pid && waitpid(fixture->pid, &status, WNOHANG) != fixture->pid)
                return;
        print_log(fixture);
        ck_abort_msg("the daemon has ended");
}

void daemon_wait_ready(struct daemon_fixture *fixture)
{
        uint64_t bytes = fixture->options.piece_bytes * fixture->options.n_pieces;
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;

        daemon_wait_log(fixture, " ready ", "");
        while (daemon_number(fixture, "host.ready_bytes") < bytes) {
                daemon_expect_alive(fixture);
                ck_assert_msg(daemon_now_ms() < deadline, "the host tier does not come up");
                daemon_pause();
        }
}

bool daemon_wait_outcome(struct daemon_fixture *fixture)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;
        int status;

        while (!daemon_has_logged(fixture, " ready ", "")) {
                if (waitpid(fixture->pid, &status, WNOHANG) == fixture->pid) {
                        fixture->pid = 0;
                        ck_assert_msg(WIFEXITED(status), "the daemon crashed at start");
                        return false;
                }
                ck_assert_msg(daemon_now_ms() < deadline, "the daemon neither starts nor ends");
                daemon_pause();
        }
        daemon_wait_ready(fixture);
        return true;
}

void daemon_start(struct daemon_fixture *fixture)
{
        daemon_launch(fixture);
        daemon_wait_ready(fixture);
}

/* ---- end ---- */

void daemon_stop(struct daemon_fixture *fixture)
{
        int status;

        ck_assert_int_eq(kill(fixture->pid, SIGTERM), 0);
        status = daemon_wait_end(fixture);
        if (status)
                print_log(fixture);
        ck_assert_msg(!status, "the daemon ended with status %d", status);
        ck_assert_msg(!daemon_has_logged(fixture, " stopping ", "drain.seconds have passed"),
                      "the drain did not come to its end");
}

void daemon_kill(struct daemon_fixture *fixture)
{
        ck_assert_int_eq(kill(fixture->pid, SIGKILL), 0);
        daemon_wait_end(fixture);
}

static void check_leftovers(const struct daemon_fixture *fixture)
{
        DIR *folder = opendir("/dev/shm");
        unsigned n_fds;

        ck_assert_msg(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "a process is left");
        for (struct dirent *entry; folder && (entry = readdir(folder));)
                ck_assert_msg(!strstr(entry->d_name, "kvt"), "/dev/shm/%s is left", entry->d_name);
        if (folder)
                closedir(folder);
        n_fds = count_fds();
        ck_assert_msg(n_fds == fixture->n_fds || fixture->options.keeps_fds,
                      "%u descriptors at the start, %u at the end", fixture->n_fds, n_fds);
}

void daemon_fixture_deinit(struct daemon_fixture *fixture)
{
        if (fixture->pid)
                daemon_stop(fixture);
        check_leftovers(fixture);
        scratch_remove(fixture->folder);
}

/* ---- log ---- */

bool daemon_has_logged(const struct daemon_fixture *fixture, const char *event, const char *detail)
{
        FILE *file = fopen(fixture->log, "re");
        bool found = false;
        char line[2048];

        if (!file)
                return false;
        fseek(file, fixture->log_start, SEEK_SET);
        while (!found && fgets(line, sizeof(line), file))
                found = strchr(line, '\n') && strstr(line, event) && strstr(line, detail);
        fclose(file);
        return found;
}

void daemon_wait_log(struct daemon_fixture *fixture, const char *event, const char *detail)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS;
        _cleanup_fd_ int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

        ck_assert_int_ge(watch, 0);
        ck_assert_int_ge(inotify_add_watch(watch, fixture->folder, IN_MODIFY), 0);
        while (!daemon_has_logged(fixture, event, detail)) {
                struct pollfd poll_fd = {.fd = watch, .events = POLLIN};
                char events[4096];

                daemon_expect_alive(fixture);
                ck_assert_msg(daemon_now_ms() < deadline, "no log line with \"%s\" and \"%s\"",
                              event, detail);
                poll(&poll_fd, 1, 200);
                while (read(watch, events, sizeof(events)) > 0)
                        ;
        }
}

/* ---- admin ---- */

static json_t *ask(struct wire_client *client, const char *command)
{
        json_error_t error;
        char *text;
        json_t *answer = NULL;

        wire_client_send_admin(client, command);
        text = wire_client_read_admin(client);
        /* A verification reports several times, a line each; the last one counts. */
        for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
                json_decref(answer);
                answer = json_loads(line, 0, &error);
                ck_assert_msg(answer != NULL, "not JSON: %s", line);
        }
        free(text);
        return answer;
}

json_t *daemon_ask(struct daemon_fixture *fixture, const char *command)
{
        struct wire_client *client = calloc(1, sizeof(*client));
        json_t *answer = NULL;

        ck_assert_ptr_nonnull(client);
        if (wire_client_connect(client, fixture->socket)) {
                if (!wire_client_hello(client, WIRE_HELLO_ADMIN))
                        answer = ask(client, command);
                wire_client_close(client);
        }
        free(client);
        return answer;
}

static json_t *ask_well(struct daemon_fixture *fixture, const char *command)
{
        json_t *answer = daemon_ask(fixture, command);

        if (!answer)
                daemon_expect_alive(fixture);
        ck_assert_msg(answer != NULL, "no answer to %s", command);
        ck_assert_msg(json_is_true(json_object_get(answer, "ok")), "%s: %s", command,
                      json_string_value(json_object_get(answer, "error")));
        return answer;
}

static const json_t *find_member(const json_t *status, const char *name)
{
        const json_t *tiers = json_object_get(status, "tiers");
        const char *member = strchr(name, '.');

        if (!member)
                return json_object_get(status, name);
        for (size_t i = 0; i < json_array_size(tiers); i++) {
                const json_t *tier = json_array_get(tiers, i);
                const char *tier_name = json_string_value(json_object_get(tier, "name"));

                if (tier_name && strlen(tier_name) == (size_t)(member - name) &&
                    !strncmp(tier_name, name, (size_t)(member - name)))
                        return json_object_get(tier, member + 1);
        }
        return NULL;
}

uint64_t daemon_number(struct daemon_fixture *fixture, const char *name)
{
        json_t *status = ask_well(fixture, "{\"command\":\"status\"}");
        const json_t *member = find_member(status, name);
        uint64_t number;

        ck_assert_msg(member != NULL, "the status has no %s", name);
        number = json_is_boolean(member) ? json_is_true(member)
                                         : (uint64_t)json_integer_value(member);
        json_decref(status);
        return number;
}

void daemon_wait_number(struct daemon_fixture *fixture, const char *name, uint64_t value)
{
        uint64_t deadline = daemon_now_ms() + DAEMON_PATIENCE_MS, number;

        while ((number = daemon_number(fixture, name)) != value) {
                ck_assert_msg(daemon_now_ms() < deadline, "%s stays %" PRIu64 ", not %" PRIu64,
                              name, number, value);
                daemon_pause();
        }
}

void daemon_wait_written(struct daemon_fixture *fixture)
{
        daemon_wait_number(fixture, "host.unwritten_bytes", 0);
        daemon_wait_number(fixture, "nvme.queued_writes", 0);
}

void daemon_wait_synced(struct daemon_fixture *fixture)
{
        daemon_wait_written(fixture);
        daemon_wait_number(fixture, "nvme.unsynced", 0);
}

static void command_each_layout(struct daemon_fixture *fixture, const char *command,
                                const char *tier)
{
        json_t *answer = ask_well(fixture, "{\"command\":\"layouts\"}");
        const json_t *layouts = json_object_get(answer, "layouts");

        for (size_t i = 0; i < json_array_size(layouts); i++) {
                const json_t *layout = json_object_get(json_array_get(layouts, i), "layout");
                char text[256];

                snprintf(text, sizeof(text), "{\"command\":\"%s\",\"layout\":\"%s\"%s%s%s}",
                         command, json_string_value(layout), tier ? ",\"tier\":\"" : "",
                         tier ? tier : "", tier ? "\"" : "");
                json_decref(ask_well(fixture, text));
        }
        json_decref(answer);
}

void daemon_evict(struct daemon_fixture *fixture, const char *tier)
{
        command_each_layout(fixture, tier ? "evict" : "clear", tier);
}

uint64_t daemon_verify(struct daemon_fixture *fixture)
{
        json_t *answer = ask_well(fixture, "{\"command\":\"verify\"}");
        uint64_t bad;

        ck_assert(json_is_true(json_object_get(answer, "finished")));
        bad = (uint64_t)(json_integer_value(json_object_get(answer, "corrupt")) +
                         json_integer_value(json_object_get(answer, "failed")));
        json_decref(answer);
        return bad;
}

int daemon_open_data(const struct daemon_fixture *fixture)
{
        char path[512] = "";
        DIR *folder = opendir(fixture->nvme);
        int fd;

        ck_assert_ptr_nonnull(folder);
        for (struct dirent *entry; (entry = readdir(folder));)
                if (entry->d_name[0] != '.')
                        snprintf(path, sizeof(path), "%s/%s", fixture->nvme, entry->d_name);
        closedir(folder);
        fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
        return fd;
}

/* ---- the process ---- */

unsigned daemon_n_fds(const struct daemon_fixture *fixture)
{
        return count_fds_of(fixture->pid);
}

uint64_t daemon_rss_bytes(const struct daemon_fixture *fixture)
{
        unsigned long long anonymous = 0;
        char path[64], line[256];
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/status", (int)fixture->pid);
        file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "RssAnon: %llu", &anonymous) == 1)
                        break;
        fclose(file);
        return anonymous << 10;
}
