/* What an answer is made of when a grammar reads it: the bytes of its text, and the control tokens that have a meaning
 * inside of a grammar. */
#ifndef KAKEYA_GRAMMAR_LETTERS_H
#define KAKEYA_GRAMMAR_LETTERS_H

enum {
    LETTER_QUOTE = 256, /* the control token around the strings of a call */
    LETTER_CALL_CLOSE,  /* the control token behind a call */
    LETTERS
};

#endif
