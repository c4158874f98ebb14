# SPDX-License-Identifier: Apache-2.0
"""kvtier-validate: whether an engine with kvtier in it is right, fast and stable, as a user sees it.

    kvtier-validate --engine http://127.0.0.1:8000 --kvtierd http://127.0.0.1:9464 --out report

Three steps over the OpenAI-compatible API of a server: `function` compares the tokens of prompts
whose cache is cold, warm and bypassed, `performance` measures both by context length, `stability`
keeps up a load. What is done is kept in a state file, from which a run may go on. Needs the extra
`kvtier[validate]`; `command` is what tells so.
"""
