// SPDX-License-Identifier: Apache-2.0
/*
 * Of <Error> the elements Code and Message count, of <ListBucketResult> IsTruncated and, in
 * each Contents, Key and Size. The server is not trusted: nothing grows, and a document
 * type, which could define entities, ends the parsing.
 */
#include <expat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/s3_pool.h"

struct s3_xml {
        XML_Parser parser;
        struct s3_error *error;
        struct s3_listing *listing;
        uint32_t depth;
        bool is_in_contents;
        bool is_wrong;
        bool has_root;
        char text[sizeof(((struct s3_listed *)0)->key)]; /* of the element that is open */
        size_t length;
        bool is_cut;
        struct s3_listed listed;
        bool has_key, has_size;
};

static void give_up(struct s3_xml *xml)
{
        xml->is_wrong = true;
        XML_StopParser(xml->parser, XML_FALSE);
}

static void XMLCALL on_doctype(void *user, const XML_Char *name, const XML_Char *system,
                               const XML_Char *public, int has_internal)
{
        give_up(user);
}

static void XMLCALL on_start(void *user, const XML_Char *name, const XML_Char **attributes)
{
        struct s3_xml *xml = user;

        xml->depth++;
        xml->length = 0;
        xml->is_cut = false;
        if (xml->depth == 1) {
                xml->has_root = true;
                if (strcmp(name, xml->listing ? "ListBucketResult" : "Error"))
                        give_up(xml);
        } else if (xml->depth == 2 && !strcmp(name, "Contents")) {
                xml->is_in_contents = true;
                xml->has_key = xml->has_size = false;
        }
}

static void XMLCALL on_text(void *user, const XML_Char *text, int length)
{
        struct s3_xml *xml = user;
        size_t room = sizeof(xml->text) - 1 - xml->length;
        size_t n = (size_t)length < room ? (size_t)length : room;

        memcpy(xml->text + xml->length, text, n);
        xml->length += n;
        xml->is_cut |= n < (size_t)length;
}

static void copy_text(char *ret_text, size_t room, const char *text)
{
        size_t i;

        /* It goes into messages for people. */
        for (i = 0; i + 1 < room && text[i]; i++)
                ret_text[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7f ? ' ' : text[i];
        ret_text[i] = '\0';
}

static void take_error(struct s3_xml *xml, const char *name)
{
        if (xml->depth != 2)
                return;
        if (!strcmp(name, "Code"))
                copy_text(xml->error->code, sizeof(xml->error->code), xml->text);
        else if (!strcmp(name, "Message"))
                copy_text(xml->error->message, sizeof(xml->error->message), xml->text);
}

static void take_contents(struct s3_xml *xml)
{
        struct s3_listing *listing = xml->listing;

        xml->is_in_contents = false;
        /* A key that is too long is not ours. */
        if (!xml->has_key)
                return;
        if (!xml->has_size || listing->n_listed == listing->max)
                give_up(xml);
        else
                listing->listed[listing->n_listed++] = xml->listed;
}

static void take_size(struct s3_xml *xml)
{
        char *end;

        errno = 0;
        xml->listed.bytes = strtoull(xml->text, &end, 10);
        xml->has_size = !errno && end != xml->text && !*end && xml->text[0] != '-';
}

static void take_listed(struct s3_xml *xml, const char *name)
{
        if (xml->depth == 3 && xml->is_in_contents && !strcmp(name, "Key")) {
                xml->has_key = !xml->is_cut;
                memcpy(xml->listed.key, xml->text, xml->length + 1);
        } else if (xml->depth == 3 && xml->is_in_contents && !strcmp(name, "Size")) {
                take_size(xml);
        } else if (xml->depth == 2 && !strcmp(name, "IsTruncated")) {
                xml->listing->is_truncated = !strcmp(xml->text, "true");
        } else if (xml->depth == 2 && xml->is_in_contents) {
                take_contents(xml);
        }
}

static void XMLCALL on_end(void *user, const XML_Char *name)
{
        struct s3_xml *xml = user;

        xml->text[xml->length] = '\0';
        if (xml->listing)
                take_listed(xml, name);
        else
                take_error(xml, name);
        xml->length = 0;
        xml->depth--;
}

struct s3_xml *s3_xml_new(struct s3_error *error, struct s3_listing *listing)
{
        struct s3_xml *xml = calloc(1, sizeof(*xml));

        if (!xml)
                return NULL;
        xml->error = error;
        xml->listing = listing;
        xml->parser = XML_ParserCreate("UTF-8");
        if (!xml->parser)
                return s3_xml_free(xml);
        XML_SetUserData(xml->parser, xml);
        XML_SetElementHandler(xml->parser, on_start, on_end);
        XML_SetCharacterDataHandler(xml->parser, on_text);
        XML_SetStartDoctypeDeclHandler(xml->parser, on_doctype);
        return xml;
}

struct s3_xml *s3_xml_free(struct s3_xml *xml)
{
        if (!xml)
                return NULL;
        if (xml->parser)
                XML_ParserFree(xml->parser);
        free(xml);
        return NULL;
}

static bool parse(struct s3_xml *xml, const char *bytes, size_t length, bool is_last)
{
        if (xml->is_wrong || length > INT32_MAX)
                return false;
        xml->is_wrong = XML_Parse(xml->parser, bytes, (int)length, is_last) != XML_STATUS_OK ||
                        xml->is_wrong;
        return !xml->is_wrong;
}

bool s3_xml_feed(struct s3_xml *xml, const char *bytes, size_t length)
{
        return parse(xml, bytes, length, false);
}

bool s3_xml_end(struct s3_xml *xml)
{
        return parse(xml, "", 0, true) && xml->has_root;
}
