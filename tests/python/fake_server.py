# SPDX-License-Identifier: Apache-2.0
"""A server that speaks vLLM's API, with a prefix cache of its own and one that is kvtier's, and
kvtierd's counters under /kvtierd/metrics. What goes wrong with it is told by `faults`."""
import json
import random
import ssl
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

VOCABULARY = 1000
MODEL = "a <b>model</b>"


class FakeServer:
    """faults, all off unless they are named:

    wrong_token, wrong_logprob: what kvtier serves differs at token 3, or its log probabilities do
    cut                 so does whatever goes on from any cache
    rounds              and that by little
    recuts              the log probabilities of whatever goes on from its own cache differ
    noisy               every second answer differs at token 2, which is a near tie
    wild                answers differ there from time to time, without likely tokens in common
    dies, stalls        after so many tokens of a stream
    drips               seconds before each token
    fails               HTTP 500 for each of so many requests
    error               in the stream
    event               the first of the stream, of any kind
    keeps               so many prompts, of kvtier
    props               what /props answers
    models              what /v1/models answers
    trickles            this path is answered by a byte now and then, without an end
    floods              and this one by ever more of them
    no_reset, no_tokenize, no_usage, no_kvtier_metrics, forgets

    tls: a file with its certificate and key.
    llama: it speaks llama-server's API instead. What is to find nothing stays in its own cache.
    """

    def __init__(self, **faults):
        if faults.get("llama"):
            slots = {"total_slots": 2, "default_generation_settings": {"n_ctx": 4096}}
            faults = {"no_reset": True, "props": slots, **faults}
        self.faults, self.lock = faults, threading.Lock()
        self.own, self.own_max = OrderedDict(), faults.pop("own_max", 10**9)
        self.kvtier, self.hits, self.stored_bytes, self.leases = set(), 0, 0, 0
        self.numbers, self.requests = count(), []
        handler = type("Handler", (Handler,), {"fake": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def __getattr__(self, fault):
        return self.faults.get(fault)

    def find(self, body):
        """Which cache has the prompt; it is in both afterwards."""
        prompt, params = tuple(body["prompt"]), body.get("kv_transfer_params") or {}
        key = (body.get("cache_salt"), prompt)
        bypasses = params.get("kvtier_bypass") is True or body.get("cache_prompt") is False
        with self.lock:
            self.requests.append(body)
            where = "own" if key in self.own and body.get("cache_prompt") is not False else None
            if not where and not bypasses and key in self.kvtier:
                where, self.hits = "kvtier", self.hits + 1
            self.own[key] = len(prompt)
            self.own.move_to_end(key)
            while sum(self.own.values()) > self.own_max:
                self.own.popitem(last=False)
            is_full = self.keeps is not None and len(self.kvtier) >= self.keeps
            if not bypasses and not self.forgets and not is_full:
                self.kvtier.add(key)
                self.stored_bytes += 0 if where else len(prompt)
        return where

    def answer(self, body, where):
        """(token, likely tokens) each."""
        source = random.Random(str(body["prompt"]))
        number = next(self.numbers)
        for i in range(body["max_tokens"]):
            token, logprob = source.randrange(VOCABULARY), -0.5
            if i == 2 and self.wild:
                token = 10 * number
            if i == 3 and where and self.cut:
                token = VOCABULARY + 1
            if i == 3 and where == "kvtier":
                token += VOCABULARY if self.wrong_token or self.rounds else 0
                logprob -= 1.0 if self.wrong_logprob else 0.0
            if i == 0 and where == "own" and self.recuts:
                logprob -= 0.25
            other = token - VOCABULARY if self.rounds and token >= VOCABULARY else token + 1
            if self.rounds and i == 3 and where != "kvtier":
                other = token + VOCABULARY
            near = 0.01 if self.rounds or self.noisy else 1.0
            if i == 2 and self.noisy and number % 2:
                token, other = other, token
            yield token, {f"token_id:{token}": logprob, f"token_id:{other}": logprob - near}

    def engine_page(self):
        lines = [f'vllm:cache_config_info{{num_gpu_blocks="{self.own_max // 16}",block_size="16"}} 1']
        if not self.no_kvtier_metrics:
            lines.append(f"vllm:kvtier_keys_loaded_total {self.hits}")
        lines.append("process_resident_memory_bytes 1000000")
        return "\n".join(lines) + "\n"

    def daemon_page(self):
        return (
            f'kvtier_uptime_seconds 5\nkvtier_hits_total{{tier="host"}} {self.hits}\n'
            f'kvtier_hits_total{{tier="nvme"}} 0\nkvtier_stored_bytes_total {self.stored_bytes}\n'
            f"kvtier_leases {self.leases}\nkvtier_leased_bytes {self.leases * 100}\n"
            f'kvtier_tier_used_bytes{{tier="host"}} {self.stored_bytes}\n'
        )

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def lists(token, likely):
    """As vLLM has it."""
    named = f"token_id:{token}"
    lists = {"tokens": [named], "token_logprobs": [likely[named]], "top_logprobs": [likely]}
    return {"token_ids": [token], "logprobs": lists}


def content(token, likely):
    """As llama-server has it."""
    top = [{"id": int(name.split(":")[1]), "logprob": value} for name, value in likely.items()]
    entry = {"id": token, "token": "x", "logprob": likely[f"token_id:{token}"], "top_logprobs": top}
    return {"logprobs": {"content": [entry]}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def parse_request(self):
        good = super().parse_request()
        if good and self.path in (self.fake.trickles, self.fake.floods):
            self.endless()
            return False
        return good

    def endless(self):
        """In headers, when it is a completion; otherwise in the body."""
        body = b" " if self.path == self.fake.trickles else b" " * (1 << 20)
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            if self.command == "GET":
                self.wfile.write(b"\r\n")
            for i in count():
                self.wfile.write(body if self.command == "GET" else f"X-{i}: y\r\n".encode())
                self.wfile.flush()
                if self.path == self.fake.trickles:
                    time.sleep(0.05)
        except OSError:
            self.close_connection = True  # whoever asked has gone

    def do_GET(self):
        if self.path == "/version" and not self.fake.llama:
            self.send(json.dumps({"version": "0"}))
        elif self.path == "/v1/models":
            known = {"data": [{"id": MODEL, "max_model_len": 4096}]}
            self.send(json.dumps(self.fake.faults.get("models", known)))
        elif self.path == "/props" and self.fake.props:
            self.send(json.dumps(self.fake.props))
        elif self.path == "/metrics":
            self.send(self.fake.engine_page())
        elif self.path == "/kvtierd/metrics":
            self.send(self.fake.daemon_page())
        else:
            self.send("no", 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/tokenize" and not self.fake.no_tokenize:
            self.send(json.dumps({"tokens": list(range(2, 200))}))
        elif self.path == "/reset_prefix_cache" and not self.fake.no_reset:
            with self.fake.lock:
                self.fake.own.clear()
            self.send('{"success":true}')
        elif self.path == "/v1/completions":
            self.complete(body)
        else:
            self.send("no", 404)

    def send(self, text, status=200):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def complete(self, body):
        fake = self.fake
        if fake.fails:
            with fake.lock:
                fake.faults["fails"] -= 1
            return self.send("out of order", 500)
        where = fake.find(body)
        if not where:
            time.sleep((fake.prefill_s or 0.0) * len(body["prompt"]))
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.stream(body, where)
        except OSError:
            pass  # whoever asked has gone

    def stream(self, body, where):
        fake = self.fake
        if fake.event is not None:
            self.event(fake.event)
        for i, (token, likely) in enumerate(fake.answer(body, where)):
            if fake.dies == i:
                return
            if fake.stalls == i:
                time.sleep(60)
            if fake.error == i:
                self.event({"error": {"message": "it broke"}})
            time.sleep(fake.drips or 0)
            ends = "length" if i + 1 == body["max_tokens"] else None
            choice = content(token, likely) if fake.llama else lists(token, likely)
            self.event({"choices": [{"text": "", **choice, "finish_reason": ends}]})
        usage = {"prompt_tokens": len(body["prompt"])}
        if not fake.no_usage:
            usage["prompt_tokens_details"] = {"cached_tokens": len(body["prompt"]) if where else 0}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, event):
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()
