# SPDX-License-Identifier: Apache-2.0
"""An S3 service in memory, for tests: one bucket, path style, any signature is right.

It knows what a pool needs: PUT (also If-None-Match: *), GET with a range, DELETE and
ListObjectsV2. `objects` is the bucket: tests look into it and change it behind everybody's back.
"""

import http.server
import threading
import urllib.parse
import xml.sax.saxutils


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def parse_request(self):
        if not super().parse_request():
            return False
        self.close_connection |= self.server.is_down
        return not self.server.is_down

    def key(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        return path.split("/", 2)[2] if path.count("/") > 1 else ""

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            if self.headers.get("If-None-Match") == "*" and self.key() in self.server.objects:
                return self.refuse(412, "PreconditionFailed")
            self.server.objects[self.key()] = body
        return self.answer(200)

    def do_DELETE(self):
        self.server.may_delete.wait()
        with self.server.lock:
            self.server.objects.pop(self.key(), None)
        self.answer(204)

    def do_GET(self):
        if not self.key():
            return self.list_objects()
        with self.server.lock:
            body = self.server.objects.get(self.key())
        if body is None:
            return self.refuse(404, "NoSuchKey")
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes="):
            return self.answer(200, body)
        first, last = wanted[6:].split("-")
        first, last = int(first), min(int(last or len(body)), len(body) - 1)
        if first >= len(body):
            return self.refuse(416, "InvalidRange")
        return self.answer(206, body[first : last + 1],
                           [("Content-Range", f"bytes {first}-{last}/{len(body)}")])

    def list_objects(self):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        with self.server.lock:
            names = sorted(name for name in self.server.objects
                           if name.startswith(query.get("prefix", ""))
                           and name > query.get("start-after", ""))
            sizes = {name: len(self.server.objects[name]) for name in names}
        most = int(query.get("max-keys", 1000))
        contents = "".join(
            f"<Contents><Key>{xml.sax.saxutils.escape(name)}</Key><Size>{sizes[name]}</Size></Contents>"
            for name in names[:most])
        cut = "true" if len(names) > most else "false"
        self.answer(200, f"<ListBucketResult><IsTruncated>{cut}</IsTruncated>{contents}"
                         "</ListBucketResult>".encode())


class FakeS3(http.server.ThreadingHTTPServer):
    """Use as a context; `endpoint` is its address."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.objects = {}
        self.is_down = False  # connections end without an answer
        self.may_delete = threading.Event()  # until it is set, DELETE has no answer
        self.may_delete.set()
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.may_delete.set()
        self.shutdown()
        self.server_close()

    def names(self, prefix):
        with self.lock:
            return sorted(name for name in self.objects if name.startswith(prefix))
