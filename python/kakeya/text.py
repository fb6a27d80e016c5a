"""The text side of a model: tokens, conversations, and grammars for what an answer may say."""

from __future__ import annotations

import json
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Union

from kakeya._ffi import ffi
from kakeya._library import Handle, check, library, options, take, text_of
from kakeya.errors import InvalidArgumentError

LITERAL, PARSE_SPECIAL, ADD_SPECIAL, ADD_ONCE = 0, 1, 2, 4
Message = Mapping[str, Any]


def ids_of(made: Any, n: Any) -> List[int]:
    found: List[int] = take(made[0], lambda pointer: ffi.unpack(pointer, n[0]) if n[0] else [])
    return found


class Tokenizer(Handle):
    """A model's tokenizer and turn format. Needs no weights; threads may share it.

    >>> tokenizer = Tokenizer()
    >>> tokenizer.decode(tokenizer.encode("Hello, world"))
    'Hello, world'
    """

    def __init__(self, model: Optional[str] = None) -> None:
        """model: a directory, a GGUF file, or a name in the Hugging Face cache; None: the demo model of this package."""
        from kakeya.engine import model_path

        made = ffi.new("kakeya_tokenizer **")
        check(library().kakeya_tokenizer_open, model_path(model).encode(), made)
        super().__init__(made[0], library().kakeya_tokenizer_close)
        self._owner: Any = None

    @classmethod
    def _of_engine(cls, pointer: Any, owner: Any) -> Tokenizer:
        made = cls.__new__(cls)
        Handle.__init__(made, pointer, lambda _: None)
        made._owner = owner  # which must live as long
        return made

    @property
    def vocab_size(self) -> int:
        """Number of tokens: ids are 0 to vocab_size - 1."""
        return int(library().kakeya_tokenizer_vocab_size(self.pointer))

    def encode(self, text: str, *, special: bool = True, parse_special: bool = True) -> List[int]:
        """Text to ids.

        special: what the model wants around a text is added (<bos> before it, once). parse_special: the names of control tokens
        in the text become these tokens; without it, every character is text.

        >>> Tokenizer().encode("Hello", special=False) == Tokenizer().encode("Hello")[1:]
        True
        """
        how = (ADD_SPECIAL | ADD_ONCE if special else LITERAL) | (PARSE_SPECIAL if parse_special else LITERAL)
        data = text.encode("utf-8", "replace")
        made, n = ffi.new("int32_t **"), ffi.new("size_t *")
        check(library().kakeya_tokenize, self.pointer, data, len(data), how, made, n)
        return ids_of(made, n)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Ids to text. keep_special: control tokens are spelled out.

        >>> Tokenizer().decode([2], keep_special=True)
        '<bos>'
        """
        tokens = list(ids)
        made, n = ffi.new("char **"), ffi.new("size_t *")
        check(library().kakeya_detokenize, self.pointer, tokens, len(tokens), keep_special, made, n)
        text: bytes = take(made[0], lambda pointer: bytes(ffi.buffer(pointer, n[0])))
        return text.decode("utf-8", "replace")

    def chat(self, messages: Sequence[Message], *, tools: Optional[Sequence[Mapping[str, Any]]] = None,
             thinking: bool = False) -> List[int]:
        """The tokens of a conversation, ending where the model's answer begins.

        messages, tools: as OpenAI's chat completions have them.

        >>> ids = Tokenizer().chat([{"role": "user", "content": "Say a word"}])
        >>> Tokenizer().decode(ids, keep_special=True).startswith("<bos>")
        True
        """
        chat = options("chat")
        chat.thinking = thinking
        declared = json.dumps(tools).encode() if tools else b""
        kept = ffi.from_buffer(declared) if tools else ffi.NULL
        chat.tools, chat.tools_bytes = (ffi.cast("const char *", kept) if tools else ffi.NULL), len(declared)
        data = json.dumps(list(messages)).encode()
        made, n = ffi.new("int32_t **"), ffi.new("size_t *")
        check(library().kakeya_chat_tokens, self.pointer, data, len(data), chat, made, n, ffi.NULL)
        return ids_of(made, n)

    def piece(self, token: int) -> str:
        """A token as the vocabulary spells it.

        >>> Tokenizer().piece(2)
        '<bos>'
        """
        found = library().kakeya_tokenizer_piece(self.pointer, token)
        if found == ffi.NULL:
            raise InvalidArgumentError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return text_of(found)


class Grammar(Handle):
    """What an answer may consist of: compiled once, used by any number of answers. A complete answer is valid, always.

    >>> grammar = Grammar(Tokenizer(), choice=["yes", "no"])
    >>> grammar.ignored
    []
    """

    def __init__(self, tokenizer: Tokenizer, *, json_schema: Union[str, Mapping[str, Any], None] = None, json_object: bool = False,
                 regex: Optional[str] = None, choice: Optional[Sequence[str]] = None, rules: Optional[str] = None,
                 any_order: bool = False) -> None:
        """Give one of: json_schema (a mapping, or JSON text), json_object, regex, choice (a list of texts), rules (GBNF, or Lark's
        syntax). any_order: members of objects come in any order, not in the schema's."""
        schema = json_schema if isinstance(json_schema, str) or json_schema is None else json.dumps(json_schema)
        forms = [(2, schema), (1, "" if json_object else None), (3, regex), (4, json.dumps(list(choice)) if choice is not None else None),
                 (5, rules)]
        given = [(kind, text) for kind, text in forms if text is not None]
        if len(given) != 1:
            raise InvalidArgumentError("give one of json_schema, json_object, regex, choice and rules")
        asked = options("grammar")
        data = (given[0][1] or "").encode()
        kept = ffi.new("char[]", data)
        asked.kind, asked.text, asked.text_bytes, asked.any_order = given[0][0], kept, len(data), any_order
        made = ffi.new("kakeya_grammar **")
        check(library().kakeya_grammar_open, tokenizer.pointer, asked, made)
        super().__init__(made[0], library().kakeya_grammar_close)
        self._tokenizer = tokenizer  # which must outlive the grammar

    @property
    def ignored(self) -> List[str]:
        """JSON pointers to what the grammar does not follow, such as formats that no standard defines."""
        found: List[str] = []
        while (note := library().kakeya_grammar_note(self.pointer, len(found))) != ffi.NULL:
            found.append(text_of(note))
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return int(library().kakeya_grammar_bytes(self.pointer))
