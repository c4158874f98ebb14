// SPDX-License-Identifier: Apache-2.0
/* The file is one of the AWS tools: sections in brackets, of which [default] counts. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/s3_pool.h"

static char *trim(char *text)
{
        char *end;

        while (isspace((unsigned char)*text))
                text++;
        end = text + strlen(text);
        while (end > text && isspace((unsigned char)end[-1]))
                *--end = '\0';
        return text;
}

/* What could not stand in a header is no key. */
static bool take(char *ret_value, size_t room, const char *value)
{
        size_t length = strlen(value);

        if (!length || length >= room)
                return false;
        for (size_t i = 0; i < length; i++)
                if (!isgraph((unsigned char)value[i]))
                        return false;
        memcpy(ret_value, value, length + 1);
        return true;
}

static bool take_line(struct s3_credentials *credentials, char *line)
{
        char *value = strchr(line, '=');
        const char *name;

        if (!value)
                return true;
        *value++ = '\0';
        name = trim(line);
        value = trim(value);
        if (!strcmp(name, "aws_access_key_id"))
                return take(credentials->id, sizeof(credentials->id), value);
        if (!strcmp(name, "aws_secret_access_key"))
                return take(credentials->secret, sizeof(credentials->secret), value);
        if (!strcmp(name, "aws_session_token"))
                return take(credentials->token, sizeof(credentials->token), value);
        return true;
}

static bool take_file(struct s3_credentials *credentials, FILE *file)
{
        bool is_default = false, is_sound = true;
        char line[8192], *text;

        while (is_sound && fgets(line, sizeof(line), file)) {
                text = trim(line);
                if (*text == '#' || *text == ';')
                        continue;
                if (*text == '[')
                        is_default = !strcmp(text, "[default]");
                else if (is_default)
                        is_sound = take_line(credentials, text);
        }
        explicit_bzero(line, sizeof(line));
        return is_sound && !ferror(file);
}

static int read_file(struct s3_credentials *credentials, const char *path, struct why *why)
{
        FILE *file = fopen(path, "re");
        bool is_sound;

        if (!file) {
                int r = -errno;

                why_set(why, "S3 credentials file %s: %s", path, strerror(-r));
                return err_raise(r);
        }
        is_sound = take_file(credentials, file);
        fclose(file);
        if (is_sound && *credentials->id && *credentials->secret)
                return 0;
        why_set(why,
                "S3 credentials file %s: the section [default] needs aws_access_key_id and "
                "aws_secret_access_key, and may have aws_session_token, without blanks in them",
                path);
        return err_raise(-EACCES);
}

static int read_environment(struct s3_credentials *credentials, struct why *why)
{
        const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
        const char *token = getenv("AWS_SESSION_TOKEN");

        if (id && secret && take(credentials->id, sizeof(credentials->id), id) &&
            take(credentials->secret, sizeof(credentials->secret), secret) &&
            (!token || !*token || take(credentials->token, sizeof(credentials->token), token)))
                return 0;
        why_set(why,
                "S3 credentials: no file is named, and the environment has no sound "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN may be there)");
        return err_raise(-EACCES);
}

int s3_credentials_read(struct s3_credentials *ret_credentials, const char *path, struct why *why)
{
        struct s3_credentials credentials = {"", "", ""};
        int r = path ? read_file(&credentials, path, why) : read_environment(&credentials, why);

        if (!r)
                *ret_credentials = credentials;
        explicit_bzero(&credentials, sizeof(credentials));
        return r;
}
