"""60: the page that chats, in a headless Chromium. `page.py --pictures FOLDER` makes the pictures of the documents
instead."""

import base64
import os
import random
import re
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


def shown_words(text):
    """The words of Markdown, or of what it is shown as: without its marks."""
    return re.findall(r"[a-z0-9]+", text.lower())


def stayed_here(b, s, least=3):
    """No request to anybody else, and nothing that the policy forbids or the script trips over."""
    asked = [u for u in b.requests() if u != "about:blank"]
    holds(len(asked) >= least, asked)
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
        equal(b.evaluate("messages.at(-1).content"), first)
        equal("".join(shown_words(" ".join(last(b, ".text")))), "".join(shown_words(first)), "blocks have no space between them")
        holds(b.evaluate("lengths.size") > 3, "the text has grown in pieces")
        figures = " ".join(last(b, ".figures"))
        holds("40 tokens" in figures and "tokens/s" in figures and "per forward" in figures and "was cut" in figures, figures)
        holds("kB of K/V memory" in figures or "MB of K/V memory" in figures, figures)
        # the charts of an answer: 10 tokens in each of the first 6 s, 30 in each of the last 4, of 20 forwards, memory that doubles in the
        # fifth and is told only when text comes; none of a short one
        none, charts = b.evaluate("""(() => { const node = document.createElement('div'), steps = [[0, 0, 1e6]];
            for (let i = 0, n = 0; i < 10; i++) if (i != 7) steps.push([1000 * i + 500, n += i < 6 ? 10 : 30, i < 4 ? 1e6 : 2e6]);
            steps.push([10000, 180, 2e6]);
            document.getElementById('log').append(node);
            show_charts(node, steps, 4);
            const none = node.childNodes.length;
            show_charts(node, steps, 20);
            const shown = [...node.querySelectorAll('.chart')].map(c => ({label: c.getAttribute('aria-label'),
                high: c.getBoundingClientRect().height, said: c.parentNode.textContent,
                points: c.querySelector('polyline').getAttribute('points').split(' ').map(p => Number(p.split(',')[1]))}));
            node.remove();
            return [none, shown]; })()""")
        equal((none, len(charts)), (0, 2))
        speed, memory = charts
        equal((speed["label"], speed["said"]), ("Speed over the answer: 0 to 60 tokens/s", "Speed: 0 to 60 tokens/s"))
        equal((memory["label"], memory["said"]), ("Memory over the answer: 1.0 MB to 2.0 MB", "Memory: 1.0 MB to 2.0 MB"))
        equal((memory["points"], speed["high"] > 10, memory["high"] > 10), ([12] * 4 + [1] * 6, True, True))
        equal(speed["points"], [19.3] * 6 + [12, 23, 12, 1])
        say(b, "Go on.")
        answered(b, 2)
        body["messages"] += [{"role": "assistant", "content": first}, {"role": "user", "content": "Go on."}]
        equal(b.evaluate("messages.at(-1).content"), s.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"])
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
        equal(b.evaluate("document.querySelector('#said').textContent"), "The answer has ended.")
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
        b.press("Escape", 27)
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
        equal(b.evaluate("node.textContent"), "Use f(x):def f(x):\n    return `x`and <i>so on</i>, ``` too.")
        holds(b.evaluate("kept") > 20, "once more has come, the first part keeps its node")
        holds("monospace" in b.evaluate("getComputedStyle(node.querySelector('pre code')).fontFamily"), "a fixed width")
        stayed_here(b, s)
    finally:
        b.close()
    s.stop()


MARKDOWN = """# A title with `code`

Some **bold**, *slanted*, ~~struck~~ and [linked](https://example.invalid/a_b) words, snake_case_names and 2 * 3 * 4.
A second line.

- one
- two
  1. inner
  2. more

     in two paragraphs
- three

3. third

> quoted
> > twice

| left | right |
|:-----|------:|
| `a\\|b` | 1 |
| c | 2 |

---

~~~
a fence of ~
~~~
"""
# What each text is shown as, children in (), texts in quotes.
FORMS = [
    ("**a *b* c**", "p(strong('a ' em('b') ' c'))"), ("a_b_c __d__", "p('a_b_c ' strong('d'))"), ("2 * 3 * 4", "p('2 * 3 * 4')"),
    (r"\*a\*", "p('*' 'a' '*')"), ("`` a`b ``", "p(code('a`b'))"), ("`a", "p('`a')"), ("~~x~~", "p(del('x'))"),
    ("[a](https://e.invalid/x)", "p(a[https://e.invalid/x]('a'))"), ("<https://e.invalid/a_b_c>", None),
    ("[a](javascript:alert(1))", "p('[a](javascript:alert(1))')"), ("[a](data:text/html,x)", "p('a')"), ("[a](JavaScript:x)", "p('a')"),
    ("![a](https://e.invalid/x.png)", "p(a[https://e.invalid/x.png]('a'))"),
    ("<img src=x onerror=alert(1)>", "p('<img src=x onerror=alert(1)>')"),
    ("# a #", "h3('a')"), ("####### a", "p('####### a')"), ("#a", "p('#a')"), ("###### a", "h6('a')"), ("a\n# b", "p('a') h3('b')"),
    ("- a\n- b", "ul(li(p('a')) li(p('b')))"), ("- a\n\n  b\n- c", "ul(li(p('a') p('b')) li(p('c')))"), ("4) x", "ol[4](li(p('x')))"),
    ("- a\n  - b\n    - c", "ul(li(p('a') ul(li(p('b') ul(li(p('c')))))))"), ("1. a\n   ```\n   x\n   ```", "ol(li(p('a') code))"),
    ("- a\nb", "ul(li(p('a\nb')))"), ("- a\n\nb", "ul(li(p('a'))) p('b')"), ("-\n- b", "ul(li li(p('b')))"),
    ("***", "hr"), ("a\n---", "p('a') hr"), ("> a\n> - b", "blockquote(p('a') ul(li(p('b'))))"),
    ("|a|b|\n|-|-:|\n|1|2|", "table"), ("a|b\n-|-\n1|2|3\n\nx", "table p('x')"), ("a | b", "p('a | b')"),
    ("```\na\n", "code"), ("```js\na\n```\nb", "code p('b')"), ("````\n```\n````", "code"), ("a\n```\nb", "p('a') code"),
    ("x  \ny", "p('x  \ny')"), ("    four", "p('    four')"), ("", ""), ("\n\n", ""), ("a\n\n\n\nb", "p('a') p('b')"),
]


@test("60: Markdown: what becomes what; a growing text is shown as the whole one; no text makes other elements, or takes long")
def _():
    s = Server("--name", "demo")
    b = open_page(s)
    try:
        ready(b)
        b.evaluate("""form = node => {
                if (node.nodeType === 3) return "'" + node.data + "'";
                if (node.className?.startsWith('code')) return 'code';
                if (node.className === 'wide') return 'table';
                const inner = [...node.childNodes].map(form).join(' ');
                const more = node.href || (node.tagName === 'OL' && node.start !== 1 && node.start);
                return node.tagName.toLowerCase() + (more ? '[' + more + ']' : '') + (inner ? '(' + inner + ')' : ''); };
            whole = text => { const node = document.createElement('div'); show(node, text); return node; };
            forms = text => [...whole(text).childNodes].map(form).join(' '); 0""")
        for text, form in FORMS:
            if form is not None:
                equal(b.evaluate(f"forms({json.dumps(text)})"), form, text)
        shown = b.evaluate(f"[...whole({json.dumps(MARKDOWN)}).children].map(n => n.tagName + (n.className ? '.' + n.className : ''))")
        equal(shown, ["H3", "P", "UL", "OL", "BLOCKQUOTE", "DIV.wide", "HR", "DIV.code"])
        cells = b.evaluate(f"[...whole({json.dumps(MARKDOWN)}).querySelectorAll('th, td')]"
                           ".map(n => [n.tagName, n.textContent, n.className])")
        equal(cells, [["TH", "left", ""], ["TH", "right", "right"], ["TD", "a|b", ""], ["TD", "1", "right"], ["TD", "c", ""],
                      ["TD", "2", "right"]])
        # random texts of what has a meaning: character by character as at once; only known elements and attributes
        luck = random.Random(5)
        pieces = ["#", " ", "\n", "\n\n", "- ", "1. ", "> ", "|", "|-|-|", "a", "b c", "`", "```", "~~~", "*", "**", "_", "__", "~~", "  ",
                  "   ", "[", "](", ")", "https://e.invalid/", "javascript:", "<", ">", "<script>x()</script>", "<img src=x onerror=x()>",
                  "\\", "-", "\t"]
        texts = ["".join(luck.choice(pieces) for _ in range(luck.randrange(1, 60))) for _ in range(40 if SHORT else 400)]
        wrong = b.evaluate(f"""(() => {{ for (const text of {json.dumps(texts)}) {{
            const grown = document.createElement('div');
            for (let i = 1; i <= text.length; i++) show(grown, text.slice(0, i));
            if (grown.innerHTML !== whole(text).innerHTML) return ['grown', text];
            for (const n of grown.querySelectorAll('*')) {{
                if (!/^(P|H[3-6]|UL|OL|LI|BLOCKQUOTE|HR|DIV|PRE|CODE|TABLE|THEAD|TBODY|TR|TH|TD|A|STRONG|EM|DEL|BUTTON)$/.test(n.tagName))
                    return [n.tagName, text];
                for (const a of n.attributes)
                    if (!/^(class|type|tabindex|role|aria-label|data-word|start|scope|href|target|rel|title)$/.test(a.name))
                        return [a.name, text];
                if (n.tagName === 'A' && !/^https?:/.test(n.href)) return [n.href, text];
            }} }} return null; }})()""")
        equal(wrong, None)
        # lists and quotes in each other without end, and marks that nothing closes: the page goes on
        for text in ("> " * 3000 + "x", "\n".join("  " * i + "- x" for i in range(300)), "*a " * 10000, "[" * 20000, "`" * 20000,
                     "**_" * 7000,
                     "|" * 20000 + "\n" + "|-" * 10000, "`a" * 10000, "<https://" * 3000):
            equal(b.evaluate(f"whole({json.dumps(text)}).childNodes.length > 0"), True, text[:20])
        stayed_here(b, s, 2)
    finally:
        b.close()
    s.stop()


@test("60: axe-core finds nothing, light and dark, on a phone and on a desk; all is reached by keyboard; nothing is wider than a phone")
def _():
    axe = os.environ.get("AXE", "")
    if not os.path.exists(axe):
        raise Skip(os.environ.get("AXE_REASON") or "test_page.sh brings axe-core")
    with open(axe) as f:
        axe = f.read()
    s = Server("--name", "demo", model=scripted_model("<|channel>thought\nhm.<channel|>So."))
    b = open_page(s)
    try:
        ready(b)
        b.evaluate("""document.getElementById('temperature').value = '0'; document.getElementById('thinking').checked = true;
            document.getElementById('keep').click(); 0""")
        put(b, "chosen", "c.json", json.dumps([{"role": "user", "content": "A_long_word_of_a_user" * 20},
                                               {"role": "assistant", "content": MARKDOWN + "    " + "x" * 200 + "\n```c\n" + "y" * 200}]))
        b.until("document.querySelectorAll('.turn').length === 2", "the file is shown")
        equal(b.evaluate("new Set([...document.querySelectorAll('.turn.model .text > *')].map(n => n.tagName)).size"), 7,
              "all kinds of blocks")
        say(b, "x")
        answered(b, 2)
        b.evaluate("show_charts([...document.querySelectorAll('.turn')].pop(), [...Array(9)].map((_, i) => [1000 * i, i, 1e6 * i]), 9); 0")
        b.evaluate("tell('A line that tells of trouble.'); document.querySelector('.thought').open = true;"
                   "document.getElementById('settings').open = true; 0")
        b.evaluate(axe + "\n;0")

        def judge(what):
            found = b.evaluate("""axe.run(document).then(r => [r.passes.length, r.violations.map(v =>
                v.id + ': ' + v.nodes.map(n => n.html.slice(0, 120) + ' ' + n.failureSummary.slice(0, 300)).join(' | ')),
                r.passes.find(rule => rule.id === 'color-contrast').nodes.length])""")
            equal(found[1], [], what)
            holds(found[0] > 20, f"{what}: {found[0]} rules had something to judge")
            holds(found[2] > 30, f"{what}: the contrast of {found[2]} texts was told")

        for scheme in ("light", "dark"):
            b.scheme(scheme)
            for width, height, phone in ((720, 2500, False), (360, 2500, True)):  # so high that all is seen, which contrast needs
                b.size(width, height, phone)
                judge(f"{scheme}, {width} x {height}")
                equal(b.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) <= innerWidth"), True)
        b.size(360, 640, True)
        holds(b.evaluate("shown.clientHeight > 120"), "with the settings open, the conversation is seen, too")
        b.size(720, 2500)
        b.evaluate("document.querySelector('.turn.model p').style.color = 'var(--line)'")
        found = b.evaluate("axe.run(document).then(r => r.violations.map(v => v.id))")
        equal(found, ["color-contrast"], "what is too faint would be found")
        b.evaluate("document.querySelector('.turn.model p').style.color = ''")
        # Tab comes to everything that can be used, and goes round
        usable = b.evaluate("""(() => { tabbed = new Set(); return [...document.querySelectorAll(
            'button, a[href], summary, textarea, input, [tabindex="0"]')].filter(n => n.checkVisibility()).length; })()""")
        b.evaluate("document.activeElement.blur(); 0")
        for _ in range(usable + 3):
            b.press("Tab", 9)
            b.evaluate("tabbed.add(document.activeElement); 0")
        equal(b.evaluate("tabbed.delete(document.body); [...tabbed].length"), usable, "what can be used is reached")
        equal(b.evaluate("[...tabbed].filter(n => getComputedStyle(n).outlineStyle === 'none').length"), usable - 1,
              "only what has the keyboard is outlined")
        # keys alone: a message, a line break in it, a fold, a conversation that was kept
        b.evaluate("say.focus(); 0")
        b.write("one")
        b.press("Enter", 13, "\r", modifiers=8)
        b.write("two")
        equal(b.evaluate("say.value"), "one\ntwo")
        b.press_enter()
        answered(b, 3)
        b.evaluate("document.querySelector('#settings summary').focus(); 0")
        b.press_enter()
        equal(b.evaluate("document.getElementById('settings').open"), False)
        equal(b.complaints(), [])
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
        equal(b.evaluate("node.textContent"), "Use:f(x)\n  + 1")
        b.evaluate("copied.length = 0; [...document.querySelectorAll('.turn.model .below .copy')].pop().click()")
        b.until("copied.length", "the whole answer is copied, too")
        equal(b.evaluate("copied"), [said], "as it was written")
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
        b.evaluate("document.getElementById('settings').open = true; [...document.querySelectorAll('#kept li')][0].lastChild.click()")
        equal(b.evaluate(KEPT), ["first"])
        equal(b.evaluate("document.activeElement.ariaLabel"), "Delete first", "the next one has the keyboard")
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
            kind = name.rsplit(".")[-1].replace("jpg", "jpeg").replace("mp3", "mpeg")
            kind = f"audio/{kind}" if kind in ("wav", "mpeg", "flac") else f"image/{kind}"
            files.append((os.path.basename(name), kind, base64.b64encode(f.read()).decode()))
    event = {"drop": "new DragEvent('drop', {dataTransfer: d, bubbles: true, cancelable: true})",
             "paste": "new ClipboardEvent('paste', {clipboardData: d, bubbles: true, cancelable: true})"}[how]
    return b.evaluate(f"""(() => {{ const d = new DataTransfer();
        for (const [name, type, text] of {json.dumps(files)})
            d.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name, {{type}}));
        const e = {event}; document.getElementById('say').dispatchEvent(e); return e.defaultPrevented; }})()""")


def thumbnails(b, n):
    b.until(f"document.querySelectorAll('#attached img').length === {n}", f"{n} thumbnails")


@test("60: pictures that are dropped or pasted have thumbnails, can be removed, and go before the message's text")
def _():
    pictures = "tests/data/images"
    s = Server("--name", "demo", "--backend", "cpu", "--precision", "f32", "--image-budget", "70", "--max-tokens", "8",
               model="tests/data/vision/tiny-tower")
    b = open_page(s)
    try:
        ready(b)
        equal(b.evaluate("[pick.hidden, pick.textContent]"), [False, "Picture"])
        b.evaluate("document.getElementById('temperature').value = '0'; 0")
        holds(bring(b, "drop", f"{pictures}/photo.jpg", f"{pictures}/text.png"), "the page keeps the files")
        thumbnails(b, 2)
        holds(bring(b, "paste", f"{pictures}/gradient.png"), "and what is pasted")
        thumbnails(b, 3)
        b.evaluate("document.querySelectorAll('#attached button')[1].click()")
        thumbnails(b, 2)
        equal(b.evaluate("[...document.querySelectorAll('#attached img')].map(i => i.alt)"), ["photo.jpg", "gradient.png"])
        bring(b, "drop", "tests/serve/page.py")
        b.until("!document.getElementById('trouble').hidden", "other files are refused")
        equal(b.evaluate("document.getElementById('trouble').textContent"), "page.py is not a PNG, JPEG, WebP or GIF picture.")
        bring(b, "drop", "tests/data/sounds/chirp.wav")
        b.until("document.getElementById('trouble').textContent === 'This model reads no sound.'", "and so are sounds")
        say(b, "What is this?")
        answered(b, 1)
        thumbnails(b, 0)
        shown = "[...document.querySelectorAll('.turn.user .attached img')]"
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
    s = Server("--name", "demo", "--vision", "off")
    b = open_page(s)
    try:
        ready(b)
        equal(b.evaluate("document.getElementById('pick').hidden"), True)
        holds(bring(b, "drop", f"{pictures}/photo.jpg"), "the page does not leave for the file")
        b.until("!document.getElementById('trouble').hidden", "a model of text says so")
        equal(b.evaluate("document.getElementById('trouble').textContent"), "This model reads no pictures.")
        bring(b, "drop", "tests/data/sounds/chirp.wav")
        b.until("document.getElementById('trouble').textContent === 'This model reads no pictures and no sound.'", "of a sound, too")
        equal(b.evaluate("document.querySelectorAll('#attached figure').length"), 0)
        equal(b.complaints(), [])
    finally:
        b.close()
    s.stop()


@test("60: sounds that are dropped, pasted or chosen have a player, can be removed, and go before the message's text")
def _():
    sounds = "tests/data/sounds"
    s = Server("--name", "demo", "--backend", "cpu", "--precision", "f32", "--image-budget", "70", "--max-tokens", "8",
               model="tests/data/vision/tiny-e")
    b = open_page(s)
    try:
        ready(b)
        equal(b.evaluate("[pick.hidden, pick.textContent]"), [False, "Picture or sound"])
        holds("audio/*" in b.evaluate("document.getElementById('file').accept") and "image/png" in
              b.evaluate("document.getElementById('file').accept"), "both can be chosen")
        b.evaluate("document.getElementById('temperature').value = '0'; 0")
        there = ("[...document.querySelectorAll('#attached figure')]"
                 ".map(f => f.querySelector('img')?.alt ?? f.querySelector('figcaption').textContent)")
        holds(bring(b, "drop", f"{sounds}/chirp.wav", "tests/data/images/photo.jpg"), "the page keeps the files")
        b.until(f"{there}.length === 2", "both are there")
        holds(bring(b, "paste", f"{sounds}/sweep-44100-stereo.flac"), "and what is pasted")
        b.until(f"{there}.length === 3", "a third")
        bring(b, "drop", f"{sounds}/sweep-24000.mp3")
        b.until(f"{there}.length === 4", "a fourth")
        equal(b.evaluate(there), ["chirp.wav", "photo.jpg", "sweep-44100-stereo.flac", "sweep-24000.mp3"])
        b.until("document.querySelector('#attached audio').duration > 0.3", "the browser plays it")
        equal(b.evaluate("[...document.querySelectorAll('#attached audio')].every(a => a.controls && a.ariaLabel)"), True)
        b.evaluate("[...document.querySelectorAll('#attached button')].pop().click()")
        b.until(f"{there}.length === 3", "the last one goes")
        bring(b, "drop", "tests/serve/page.py")
        b.until("!document.getElementById('trouble').hidden", "other files are refused")
        equal(b.evaluate("document.getElementById('trouble').textContent"),
              "page.py is not a PNG, JPEG, WebP or GIF picture, nor a WAV, MP3 or FLAC sound.")
        equal(b.evaluate("""[['a.WAV', ''], ['a.wav', 'audio/x-wav'], ['a', 'audio/vnd.wave'], ['a.mp3', 'audio/mpeg'],
            ['a', 'audio/x-flac'], ['a.ogg', 'audio/ogg'], ['a.wav', 'text/plain'], ['a.txt', '']]
            .map(([name, type]) => sound_format({ name, type }) ?? '')"""),
              ["wav", "wav", "wav", "mp3", "flac", "", "", ""])
        b.evaluate("document.getElementById('keep').click()")
        say(b, "What is this?")
        answered(b, 1)
        equal(b.evaluate(there), [])
        said = there.replace("#attached", ".turn.user .attached")
        equal(b.evaluate(said), ["chirp.wav", "photo.jpg", "sweep-44100-stereo.flac"])
        equal(b.evaluate("document.querySelectorAll('.turn.user .attached button').length"), 0)

        def data(path):
            with open(path, "rb") as f:
                return base64.b64encode(f.read()).decode()

        def part(name, form):
            return {"type": "input_audio", "input_audio": {"data": data(f"{sounds}/{name}"), "format": form}}

        picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + data("tests/data/images/photo.jpg")}}
        parts = [part("chirp.wav", "wav"), picture, part("sweep-44100-stereo.flac", "flac"), {"type": "text", "text": "What is this?"}]
        body = {"model": "demo", "messages": [{"role": "user", "content": parts}], "temperature": 0}
        first = s.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
        equal("".join(last(b, ".text")), first)
        equal(b.evaluate("JSON.stringify(messages[0].content)"), json.dumps(parts, separators=(",", ":")))

        # kept, and opened again: what is there goes on as it would have
        b.call("Page.reload")
        b.until("typeof current !== 'undefined' && current === null && document.readyState === 'complete'", "the page is there again")
        ready(b)
        b.evaluate("document.getElementById('temperature').value = '0'; document.querySelector('#kept li > :first-child').click()")
        equal(b.evaluate(said), ["sound", "picture", "sound"])
        say(b, "And now?")
        answered(b, 2)
        holds(", 0 of it kept" not in last(b, ".figures")[0], "the sounds are the conversation's, and not computed again")
        for wrong in ({"data": "https://example.invalid/x.wav", "format": "wav"}, {"data": "AAAA", "format": "__proto__"},
                      {"data": "AAAA"}, None):
            b.evaluate("tell(''); 0")
            put(b, "chosen", "w.json", json.dumps([{"role": "user", "content": [{"type": "input_audio", "input_audio": wrong}]}]))
            b.until("document.getElementById('trouble').textContent.startsWith('w.json is no conversation')", str(wrong))
        b.evaluate("document.getElementById('fresh').click()")
        bring(b, "drop", f"{sounds}/chirp.wav")
        b.until(f"{there}.length === 1", "a sound alone")
        b.evaluate("document.getElementById('send').click()")
        answered(b, 1)
        equal(b.evaluate(KEPT)[0], "A sound")
        equal(b.complaints(), [])
    finally:
        b.close()
    s.stop()


ON_A_PHONE = """**Yes.** `fold` adds a list, from the left:

```python
def fold(numbers):
    total = 0
    for n in numbers:
        total += n
    return total
```

| call | result |
|------|-------:|
| `fold([1, 2, 3])` | 6 |
| `fold([])` | 0 |

1. An *empty* list gives 0.
2. Nothing is changed in the list."""


def pictures_of_documents(folder):
    note = "Note {}: this paragraph is unrelated padding and does not contain the answer.\n"
    question = "Question: what is the secret code? Answer:"
    s = Server("--name", "demo", "--max-tokens", "64")
    b = open_page(s)
    b.size(720, 600)
    b.until("document.getElementById('model').textContent", "the page knows the model")
    b.evaluate("document.getElementById('temperature').value = '0'; 0")
    text = note.format("0001") + "IMPORTANT: the secret code is IOTA-8961.\n" + note.format("0002") + question
    for i, text in enumerate((text, ASK)):
        say(b, text)
        answered(b, i + 1)
    b.evaluate("document.activeElement.blur(); 0")
    with open(os.path.join(folder, "page.png"), "wb") as f:
        f.write(b.picture())
    b.size(360, 640, True)
    b.scheme("dark")
    put(b, "chosen", "c.json", json.dumps([{"role": "user", "content": "Can you write a sum with a loop?"},
                                           {"role": "assistant", "content": ON_A_PHONE}]))
    b.until("document.querySelectorAll('.turn').length === 2", "the conversation is shown")
    b.evaluate("document.activeElement.blur(); shown.scrollTop = 0; 0")
    with open(os.path.join(folder, "page-phone.png"), "wb") as f:
        f.write(b.picture())
    b.close()
    s.stop()


if sys.argv[1:2] == ["--pictures"]:
    pictures_of_documents(sys.argv[2])
else:
    run_tests()
