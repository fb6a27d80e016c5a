"""60: the page that chats, in a headless Chromium. `page.py --picture FILE` makes the picture of the documents instead."""

import base64
import os
import sys

import browser
from harness import *  # noqa: F403

ASK = "def fibonacci(n):"
SIZE = (720, 486)


def open_page(s, **more):
    if not browser.find():
        raise Skip("there is no Chromium")
    b = browser.Browser(2 * WAIT, *SIZE, **more)
    b.open(s.url + "/")
    return b


def say(b, text):
    b.evaluate("document.getElementById('say').focus()")
    b.write(text)
    b.press_enter()


def ready(b):
    b.until("document.getElementById('model').textContent === 'demo'", "the page knows the model")


def last(b, what):
    """Texts of that class in the last answer."""
    return b.evaluate(f"[...[...document.querySelectorAll('.turn.model')].pop().querySelectorAll('{what}')].map(n => n.textContent)")


def answered(b, n):
    b.until(f"document.querySelectorAll('.turn.model').length === {n} && document.getElementById('stop').hidden", f"answer {n} has ended")


def stayed_here(b, s):
    """No request to anybody else, and nothing that the policy forbids or the script trips over."""
    asked = [u for u in b.requests() if u != "about:blank"]
    holds(len(asked) >= 3, asked)
    equal([u for u in asked if not u.startswith(s.url + "/")], [], "requests to others")
    equal(b.complaints(), [])


@test("60: it loads with its policy, streams an answer as it comes, shows its figures, goes on with the conversation, asks nobody else")
def _():
    s = Server("--name", "demo", "--max-tokens", "40")
    b = open_page(s)
    try:
        ready(b)
        b.evaluate("""lengths = new Set(); document.getElementById('temperature').value = '0';
            new MutationObserver(() => lengths.add((document.querySelector('.turn.model > .text') || '').textContent))
                .observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true}); 0""")
        say(b, ASK)
        answered(b, 1)
        body = {"model": "demo", "messages": [{"role": "user", "content": ASK}], "temperature": 0}
        first = s.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
        equal(last(b, ".text"), [first])
        holds(b.evaluate("lengths.size") > 3, "the text has grown in pieces")
        figures = " ".join(last(b, ".figures"))
        holds("40 tokens" in figures and "tokens/s" in figures and "per forward" in figures and "was cut" in figures, figures)
        # the chart of an answer: 10 tokens in each of the first 6 s, 30 in each of the last 4, of 20 forwards; none of a short one
        chart = b.evaluate("""(() => { const node = document.createElement('div'), steps = [[0, 0]];
            for (let i = 0, n = 0; i < 10; i++) steps.push([1000 * i + 500, n += i < 6 ? 10 : 30]);
            steps.push([10000, 180]);
            document.getElementById('log').append(node);
            show_chart(node, steps, 4);
            const none = node.childNodes.length;
            show_chart(node, steps, 20);
            const c = node.firstChild, shown = {none, label: c.getAttribute('aria-label'), high: c.getBoundingClientRect().height,
                points: c.querySelector('polyline').getAttribute('points').split(' ').map(p => Number(p.split(',')[1]))};
            node.remove();
            return shown; })()""")
        equal((chart["none"], chart["label"]), (0, "Speed over the answer: 10 to 30 tokens/s"))
        equal((chart["points"], chart["high"] > 10), ([15.7] * 6 + [1] * 4, True))
        say(b, "Go on.")
        answered(b, 2)
        body["messages"] += [{"role": "assistant", "content": first}, {"role": "user", "content": "Go on."}]
        equal(last(b, ".text"), [s.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]])
        holds(" of it kept from before" in last(b, ".figures")[0] and ", 0 of it" not in last(b, ".figures")[0], last(b, ".figures"))
        stayed_here(b, s)
        # what the policy is for: neither other scripts nor other servers
        equal(b.evaluate("(() => { const x = document.createElement('script'); x.textContent = 'stolen = 1'; document.body.append(x);"
                         "return typeof stolen; })()"), "undefined")
        equal(b.evaluate(f"fetch('http://localhost:{s.port}/livez').then(() => 'sent', () => 'refused')"), "refused")
    finally:
        b.close()
    s.stop()


@test("60: thoughts are folded, control characters of HTML are text, Stop stops, New chat forgets, a key is asked for")
def _():
    if SHORT:
        raise Skip("a short run")
    s = Server("--name", "demo", "--api-key", "secret", model=scripted_model("<|channel>thought\nhm.<channel|>So: <b>it is</i>"))
    b = open_page(s)
    try:
        b.until("document.getElementById('ask').open", "the key is asked for")
        b.evaluate("document.getElementById('key').focus()")
        b.write("secret")
        b.press_enter()
        ready(b)
        b.evaluate("document.getElementById('temperature').value = '0'; document.getElementById('thinking').checked = true; 0")
        say(b, "x")
        answered(b, 1)
        equal((last(b, ".thought .text"), last(b, ":scope > .text")), (["hm."], ["So: <b>it is</i>"]))
        equal(b.evaluate("document.querySelector('.thought').open"), False)
        equal(b.evaluate("document.querySelectorAll('b, i').length"), 0)
        b.evaluate("document.getElementById('fresh').click()")
        equal(b.evaluate("document.querySelectorAll('.turn').length"), 0)
        equal([c for c in b.complaints() if "401" not in c], [])
    finally:
        b.close()
    s.stop()
    s = Server("--name", "demo")
    b = open_page(s)
    try:
        ready(b)
        say(b, ASK)
        b.until("(document.querySelector('.turn.model > .text') || '').textContent", "the answer begins")
        b.evaluate("document.getElementById('stop').click()")
        answered(b, 1)
        equal(last(b, ".figures"), ["Stopped."])
        eventually(lambda: s.metric("kakeya_requests_running") == 0, "the server stops, too")
        say(b, "Go on.")
        b.until("document.querySelectorAll('.turn.model').length === 2", "it goes on")
        b.evaluate("document.getElementById('fresh').click()")
        stayed_here(b, s)
    finally:
        b.close()
    s.stop()


@test("60: code has a fixed width while it grows and after it, and goes back to the model as it was written")
def _():
    said = "So: `f(x)`"
    grown = "Use `f(x)`:\n```python\ndef f(x):\n    return `x`\n```\nand <i>so on</i>, ``` too."
    s = Server("--name", "demo", model=scripted_model(said))
    b = open_page(s)
    try:
        ready(b)
        b.evaluate("document.getElementById('temperature').value = '0'; 0")
        b.evaluate("""sent = []; send_on = window.fetch;
            window.fetch = (path, options) => {
                if (options && options.body) sent.push(options.body);
                return send_on(path, options); }; 0""")
        say(b, "x")
        answered(b, 1)
        equal((last(b, "code"), last(b, ".text")), (["f(x)"], ["So: f(x)"]))
        say(b, "y")
        answered(b, 2)
        equal(json.loads(b.evaluate("sent[1]"))["messages"][1]["content"], said)
        # a block that comes character by character
        b.evaluate(f"""grown = {json.dumps(grown)}; node = document.createElement('div'); document.body.append(node); kept = 0;
            for (let i = 1; i <= grown.length; i++) {{
                const first = node.firstChild; show(node, grown.slice(0, i)); kept += first === node.firstChild; }} 0""")
        equal(b.evaluate("[...node.querySelectorAll('code')].map(n => n.textContent)"), ["f(x)", "def f(x):\n    return `x`"])
        equal(b.evaluate("node.textContent"), "Use f(x):\ndef f(x):\n    return `x`and <i>so on</i>, ``` too.")
        equal(b.evaluate("kept"), 55, "steps in which the first part keeps its node")
        holds("monospace" in b.evaluate("getComputedStyle(node.querySelector('pre code')).fontFamily"), "a fixed width")
        stayed_here(b, s)
    finally:
        b.close()
    s.stop()


def put(b, field, name, text):
    """A file in a field of files, as if it had been chosen."""
    b.evaluate(f"""(() => {{ const d = new DataTransfer(); d.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));
        const field = document.getElementById('{field}'); field.files = d.files; field.dispatchEvent(new Event('change')); }})()""")


KEPT = "[...document.querySelectorAll('#kept li > :first-child')].map(n => n.textContent)"


@test("60: a block of code is copied; conversations are kept on request, listed, opened, deleted, exported and imported")
def _():
    said = "So: `f(x)`"
    s = Server("--name", "demo", model=scripted_model(said))
    b = open_page(s)
    try:
        ready(b)
        b.evaluate("document.getElementById('temperature').value = '0'; 0")
        b.evaluate("copied = []; navigator.clipboard.writeText = text => { copied.push(text); return Promise.resolve(); }; 0")
        say(b, "first")
        answered(b, 1)
        block = json.dumps("Use:\n```python\nf(x)\n  + 1\n```\n")
        b.evaluate(f"node = document.createElement('div'); document.body.append(node); show(node, {block}); 0")
        b.evaluate("node.querySelector('.copy').click()")
        b.until("!!node.querySelector('.copy.done')", "the button says that it has copied")
        equal((b.evaluate("copied"), b.evaluate("node.querySelector('.copy').ariaLabel")), (["f(x)\n  + 1"], "Copy the code"))
        equal(b.evaluate("node.textContent"), "Use:\nf(x)\n  + 1")
        equal((b.evaluate(KEPT), b.evaluate("Object.keys(localStorage)")), ([], []), "nothing is kept unless it is asked for")
        b.evaluate("document.getElementById('keep').click()")
        equal(b.evaluate(KEPT), ["first"])
        b.evaluate("document.getElementById('fresh').click()")
        say(b, "second")
        answered(b, 1)
        say(b, "and more")
        answered(b, 2)
        equal(b.evaluate(KEPT), ["second", "first"])

        # the tab comes again: the list is there, and what is opened goes on as it would have
        b.call("Page.reload")
        b.until("typeof current !== 'undefined' && current === null && document.readyState === 'complete'", "the page is there again")
        ready(b)
        equal((b.evaluate(KEPT), b.evaluate("document.getElementById('keep').checked")), (["second", "first"], True))
        equal(b.evaluate("document.querySelectorAll('.turn').length"), 0)
        b.evaluate("document.querySelector('#kept li > :first-child').click()")
        turns = "[...document.querySelectorAll('.turn > .text')].map(n => n.textContent)"
        equal(b.evaluate(turns), ["second", "So: f(x)", "and more", "So: f(x)"])
        equal(b.evaluate("document.querySelector('#kept [aria-current]').textContent"), "second")
        b.evaluate("""sent = []; send_on = window.fetch; window.fetch = (path, options) => {
            if (options && options.body) sent.push(JSON.parse(options.body).messages); return send_on(path, options); }; 0""")
        say(b, "third")
        answered(b, 3)
        equal([m["content"] for m in b.evaluate("sent[0]")], ["second", said, "and more", said, "third"])

        # out and in again
        b.evaluate("URL.createObjectURL = blob => { exported = blob.text(); return '#'; }; document.getElementById('export').click(); 0")
        exported = json.loads(b.evaluate("exported"))
        equal((exported["model"], len(exported["messages"])), ("demo", 6))
        b.evaluate("[...document.querySelectorAll('#kept li')][0].lastChild.click()")
        equal(b.evaluate(KEPT), ["first"])
        put(b, "chosen", "c.json", json.dumps(exported))
        b.until("document.querySelectorAll('.turn').length === 6", "the file is shown")
        equal(b.evaluate(KEPT), ["second", "first"])
        alone = [{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "<i>hi</i>"}]
        put(b, "chosen", "m.json", json.dumps(alone))
        b.until("document.querySelectorAll('.turn').length === 1", "so are messages alone")
        equal((b.evaluate("document.getElementById('system').value"), b.evaluate(turns)), ("Be <b>brief</b>.", ["<i>hi</i>"]))
        picture = {"type": "image_url", "image_url": {"url": "https://example.invalid/x.png"}}
        for wrong in ("{}", "no JSON", "[]", '[{"role": "tool", "content": "x"}]', json.dumps([{"role": "user", "content": [picture]}])):
            b.evaluate("tell(''); 0")
            put(b, "chosen", "w.json", wrong)
            b.until("document.getElementById('trouble').textContent.startsWith('w.json is no conversation')", wrong)
        equal(b.evaluate("document.querySelectorAll('.turn').length"), 1, "what is shown stays")
        stayed_here(b, s)
    finally:
        b.close()
    s.stop()


@test("60: a full context, before or within an answer, suggests a new chat")
def _():
    s = Server("--name", "demo", "--context", "300")
    b = open_page(s)
    try:
        ready(b)
        say(b, "word " * 400)
        answered(b, 1)
        holds(last(b, ".failed") and "Start a new chat" in last(b, ".full")[0], last(b, ".failed"))
        b.evaluate("document.querySelector('.full button').click()")
        equal(b.evaluate("document.querySelectorAll('.turn').length"), 0)
        b.evaluate("document.getElementById('temperature').value = '2'; 0")
        say(b, "word " * 200)
        answered(b, 1)
        holds("300 tokens" in last(b, ".full")[0], last(b, ".figures"))
        equal([c for c in b.complaints() if "400" not in c], [])
    finally:
        b.close()
    s.stop()


def bring(b, how, *names):
    """Drops files on the page, or pastes them: what a person's hand makes the browser tell it."""
    files = []
    for name in names:
        with open(name, "rb") as f:
            kind = name.rsplit(".")[-1].replace("jpg", "jpeg")
            files.append((os.path.basename(name), f"image/{kind}", base64.b64encode(f.read()).decode()))
    event = {"drop": "new DragEvent('drop', {dataTransfer: d, bubbles: true, cancelable: true})",
             "paste": "new ClipboardEvent('paste', {clipboardData: d, bubbles: true, cancelable: true})"}[how]
    return b.evaluate(f"""(() => {{ const d = new DataTransfer();
        for (const [name, type, text] of {json.dumps(files)})
            d.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name, {{type}}));
        const e = {event}; document.getElementById('say').dispatchEvent(e); return e.defaultPrevented; }})()""")


def thumbnails(b, n):
    b.until(f"document.querySelectorAll('#pictures img').length === {n}", f"{n} thumbnails")


@test("60: pictures that are dropped or pasted have thumbnails, can be removed, and go before the message's text")
def _():
    pictures = "tests/data/images"
    s = Server("--name", "demo", "--backend", "cpu", "--precision", "f32", "--image-budget", "70", "--max-tokens", "8",
               model="tests/data/vision/tiny-tower")
    b = open_page(s)
    try:
        ready(b)
        equal(b.evaluate("document.getElementById('pick').hidden"), False)
        b.evaluate("document.getElementById('temperature').value = '0'; 0")
        holds(bring(b, "drop", f"{pictures}/photo.jpg", f"{pictures}/text.png"), "the page keeps the files")
        thumbnails(b, 2)
        holds(bring(b, "paste", f"{pictures}/gradient.png"), "and what is pasted")
        thumbnails(b, 3)
        b.evaluate("document.querySelectorAll('#pictures button')[1].click()")
        thumbnails(b, 2)
        equal(b.evaluate("[...document.querySelectorAll('#pictures img')].map(i => i.alt)"), ["photo.jpg", "gradient.png"])
        bring(b, "drop", "tests/serve/page.py")
        b.until("!document.getElementById('trouble').hidden", "other files are refused")
        holds("page.py is not a PNG" in b.evaluate("document.getElementById('trouble').textContent"), "by name")
        say(b, "What is this?")
        answered(b, 1)
        thumbnails(b, 0)
        shown = "[...document.querySelectorAll('.turn.user .pictures img')]"
        equal(b.evaluate(f"{shown}.map(i => [i.alt, i.naturalWidth > 0])"), [["photo.jpg", True], ["gradient.png", True]])

        def part(name, kind):
            with open(f"{pictures}/{name}", "rb") as f:
                return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(f.read()).decode()}"}}

        parts = [part("photo.jpg", "jpeg"), part("gradient.png", "png"), {"type": "text", "text": "What is this?"}]
        body = {"model": "demo", "messages": [{"role": "user", "content": parts}], "temperature": 0}
        first = s.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
        equal("".join(last(b, ".text")), first)
        say(b, "And now?")
        answered(b, 2)
        holds(", 0 of it kept" not in last(b, ".figures")[0], "the pictures are the conversation's, and not computed again")
        equal(b.complaints(), [])
    finally:
        b.close()
    s.stop()
    s = Server("--name", "demo")
    b = open_page(s)
    try:
        ready(b)
        equal(b.evaluate("document.getElementById('pick').hidden"), True)
        holds(bring(b, "drop", f"{pictures}/photo.jpg"), "the page does not leave for the file")
        b.until("!document.getElementById('trouble').hidden", "a model of text says so")
        equal(b.evaluate("document.getElementById('trouble').textContent"), "This model reads no pictures.")
        equal(b.evaluate("document.querySelectorAll('#pictures img').length"), 0)
        equal(b.complaints(), [])
    finally:
        b.close()
    s.stop()


def picture(path):
    note = "Note {}: this paragraph is unrelated padding and does not contain the answer.\n"
    question = "Question: what is the secret code? Answer:"
    s = Server("--name", "demo", "--max-tokens", "48")
    b = open_page(s)
    b.until("document.getElementById('model').textContent", "the page knows the model")
    b.evaluate("document.getElementById('temperature').value = '0'; 0")
    text = note.format("0001") + "IMPORTANT: the secret code is IOTA-8961.\n" + note.format("0002") + question
    for i, text in enumerate((text, question)):
        say(b, text)
        answered(b, i + 1)
    b.evaluate("document.activeElement.blur(); 0")
    with open(path, "wb") as f:
        f.write(b.picture())
    b.close()
    s.stop()


if sys.argv[1:2] == ["--picture"]:
    picture(sys.argv[2])
else:
    run_tests()
