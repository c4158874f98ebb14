// SPDX-License-Identifier: Apache-2.0
/*
 * Reads traces of public workloads, plain or gzipped. The first line tells which format it is:
 *
 *   mooncake  {"timestamp" ms, "input_length", "hash_ids" [id...]}: an id for each 512 tokens,
 *             the last, partial block included
 *   merged    {"timestamp" ms, "session", "input_length", "hash_ranges" [[first, count]...]}:
 *             an id for each 64 tokens, full blocks only
 *   sessions  one session a line: {"id", "block_size", "requests" [[s, tokens, output tokens,
 *             API s, thinking s, ranges]...]}; ids are local to the line. All sessions begin
 *             at 0, unless their requests say otherwise
 *   text      {"session", "us", "in_bytes", "hash_ranges"}: an id for each 256 bytes, which are
 *             taken for 64 tokens; a session begins when the one before it ended
 *   azure     "TIMESTAMP,ContextTokens,GeneratedTokens": lengths only. No prompt is like
 *             another, so nothing can hit: such a trace shows what is written for nothing
 *
 * Ids are chained (an id names all that precedes it), so that a chunk of several blocks is named
 * by its last one.
 */
#pragma once

#include "trace.h"

/*
 * Appends the requests of the file at @path to @trace and finishes it. -EINVAL: the file is not
 * such a trace, and @why says where.
 */
int trace_file_read(struct trace *trace, const char *path, struct why *why);
