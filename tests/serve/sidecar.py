"""A stand-in for llm-d's sidecar with its shared-storage protocol: it stands before a decoder, and has prompts that the decoder does not
hold computed by the prefiller that the router names in x-prefiller-host-port. `python3 sidecar.py PORT DECODER_HOST:PORT` runs it."""

import http.client
import http.server
import json
import sys
import threading

HEADERS = {"Content-Type": "application/json"}


def ask(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.request("POST", path, json.dumps(body).encode(), HEADERS)
    return connection.getresponse()


def is_declined(event):
    return any(c.get("finish_reason") == "cache_threshold" for c in event.get("choices", []))


class Sidecar(http.server.BaseHTTPRequestHandler):
    decoder = None  # HOST:PORT
    threshold = 0.8

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prefiller = self.headers.get("x-prefiller-host-port")
        if not prefiller or not self.try_decoder({**body, "cache_hit_threshold": self.threshold}):
            if prefiller:
                first = {**body, "max_tokens": 1, "max_completion_tokens": 1, "cache_hit_threshold": 0, "stream": False}
                if self.path == "/v1/completions":
                    first.pop("max_completion_tokens")
                first.pop("stream_options", None)
                try:
                    ask(prefiller, self.path, first).read()
                except (OSError, http.client.HTTPException):
                    pass  # it is gone: the decoder computes the prompt
            self.send(ask(self.decoder, self.path, {**body, "cache_hit_threshold": 0}))

    def try_decoder(self, body):
        """Whether it has answered. What it says first tells: the body, or the first event of a stream."""
        reply = ask(self.decoder, self.path, body)
        if not body.get("stream") or reply.status != 200:
            text = reply.read()
            if reply.status == 200 and is_declined(json.loads(text)):
                return False
            self.send(reply, text)
            return True
        line = reply.readline()
        while not line.startswith(b"data: "):
            line = reply.readline()
        if is_declined(json.loads(line[6:])):
            reply.close()
            return False
        self.send(reply, line)
        return True

    def send(self, reply, begun=b""):
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.getheader("content-type"))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(begun)
        while piece := reply.read1(65536):
            self.wfile.write(piece)
        self.close_connection = True

    def log_message(self, *_):
        pass


def start(decoder, port=0):
    """A server on a thread of its own; its shutdown() ends it."""
    handler = type("Sidecar", (Sidecar,), {"decoder": decoder})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    start(sys.argv[2], int(sys.argv[1]))
    threading.Event().wait()
