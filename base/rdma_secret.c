// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/rdma_secret.h"

#define FILE_BYTES_MAX 4096u

/* Reads the whole file into @text, which ends with a zero. */
static int read_file(char text[FILE_BYTES_MAX], const char *path, struct why *why)
{
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat status;
        ssize_t length;

        if (fd < 0 || fstat(fd, &status)) {
                int error = errno;

                why_set(why, "%s: %s", path, strerror(error));
                return err_raise(-error);
        }
        if (!S_ISREG(status.st_mode) || status.st_mode & S_IRWXO) {
                why_set(why, "%s: everybody may use it: chmod o= it", path);
                return RDMA_SECRET_E_INVALID;
        }
        length = read(fd, text, FILE_BYTES_MAX);
        if (length < 0) {
                int error = errno;

                why_set(why, "%s: %s", path, strerror(error));
                return err_raise(-error);
        }
        if (length == FILE_BYTES_MAX || memchr(text, 0, (size_t)length)) {
                why_set(why, "%s: not a line of text \"DOMAIN SECRET\"", path);
                return RDMA_SECRET_E_INVALID;
        }
        text[length] = '\0';
        return 0;
}

/* The next word of a line; NULL where there is none. */
static char *next_word(char **line)
{
        char *word = *line + strspn(*line, " \t\r");

        *line = word + strcspn(word, " \t\r");
        if (**line)
                *(*line)++ = '\0';
        return *word ? word : NULL;
}

/* Text never quotes the secret. */
static int take_line(struct rdma_secret_file *file, char *line, const char *path, struct why *why)
{
        const char *domain = next_word(&line), *secret = next_word(&line);
        size_t length = secret ? strlen(secret) : 0;

        if (!domain || *domain == '#')
                return 0;
        if (*file->domain || !secret || next_word(&line)) {
                why_set(why, "%s: expected one line \"DOMAIN SECRET\"", path);
                return RDMA_SECRET_E_INVALID;
        }
        if (strlen(domain) >= sizeof(file->domain)) {
                why_set(why, "%s: the domain's name has %zu bytes: use at most %zu", path,
                        strlen(domain), sizeof(file->domain) - 1);
                return RDMA_SECRET_E_INVALID;
        }
        if (length < RDMA_SECRET_MIN || length > RDMA_SECRET_MAX) {
                why_set(why, "%s: the secret has %zu bytes: use %u to %u", path, length,
                        RDMA_SECRET_MIN, RDMA_SECRET_MAX);
                return RDMA_SECRET_E_INVALID;
        }
        memcpy(file->domain, domain, strlen(domain));
        memcpy(file->secret.bytes, secret, length);
        file->secret.length = length;
        return 0;
}

int rdma_secret_load(struct rdma_secret_file *ret_file, const char *path, struct why *why)
{
        char text[FILE_BYTES_MAX], *rest = text;
        struct rdma_secret_file file = {0};
        int r = read_file(text, path, why);

        while (!r && rest)
                r = take_line(&file, strsep(&rest, "\n"), path, why);
        if (!r && !*file.domain) {
                why_set(why, "%s: no line \"DOMAIN SECRET\" in it", path);
                r = RDMA_SECRET_E_INVALID;
        }
        if (!r)
                *ret_file = file;
        explicit_bzero(&file, sizeof(file));
        explicit_bzero(text, sizeof(text));
        return r;
}

int rdma_secret_find(void *user, const char *domain, struct rdma_secret *ret_secret)
{
        const struct rdma_secret_file *file = user;

        if (strcmp(domain, file->domain) != 0)
                return RDMA_E_DENIED;
        *ret_secret = file->secret;
        return 0;
}
