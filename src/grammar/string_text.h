/* Where a text stands inside of a string: between characters, inside of one, in an escape. */
#ifndef KAKEYA_GRAMMAR_STRING_TEXT_H
#define KAKEYA_GRAMMAR_STRING_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Inside of a string: between characters, inside of a UTF-8 character, behind a backslash, in a \u escape. */
enum {
    BETWEEN = 0,
    ONE_MORE,
    TWO_MORE,
    THREE_MORE,
    BEHIND_E0,
    BEHIND_ED,
    BEHIND_F0,
    BEHIND_F4,
    ESCAPED,
    HEX_1,
    HEX_2,
    HEX_3,
    HEX_4,
    BEHIND_D,  /* \uD: a surrogate from 8 on */
    HIGH_3,    /* a first surrogate's third digit */
    HIGH_4,    /* its fourth */
    SECOND,    /* the backslash of the second one */
    SECOND_U,  /* its u */
    SECOND_1,  /* its D */
    SECOND_2,  /* C to F */
    NO_STRING, /* refused */
};

static inline uint32_t first_byte(unsigned byte) {
    if (byte < 0x80) return BETWEEN;
    if (byte < 0xC2 || byte > 0xF4) return NO_STRING;
    if (byte < 0xE0) return ONE_MORE;
    if (byte < 0xF0) return byte == 0xE0 ? BEHIND_E0 : byte == 0xED ? BEHIND_ED : TWO_MORE;
    return byte == 0xF0 ? BEHIND_F0 : byte == 0xF4 ? BEHIND_F4 : THREE_MORE;
}

static inline uint32_t in_range(unsigned letter, unsigned low, unsigned high, uint32_t then) {
    return letter >= low && letter <= high ? then : NO_STRING;
}

static inline bool is_digit(unsigned letter) { return letter >= '0' && letter <= '9'; }
static inline bool is_hex(unsigned letter) {
    return is_digit(letter) || (letter >= 'a' && letter <= 'f') || (letter >= 'A' && letter <= 'F');
}
static inline bool is_d(unsigned letter) { return letter == 'd' || letter == 'D'; }

/* One letter more; the quotes at the ends of a string are not its business. escapes: the text is JSON's. */
static inline uint32_t text_step(uint32_t at, unsigned letter, bool escapes) {
    if (letter > 0xFF) return NO_STRING;
    switch (at) {
    case BETWEEN:
        if (escapes && letter == '\\') return ESCAPED;
        return escapes && (letter < 0x20 || letter == '"') ? NO_STRING : first_byte(letter);
    case ONE_MORE:
    case TWO_MORE:
    case THREE_MORE:
        return in_range(letter, 0x80, 0xBF, at - 1);
    case BEHIND_E0:
        return in_range(letter, 0xA0, 0xBF, ONE_MORE);
    case BEHIND_ED:
        return in_range(letter, 0x80, 0x9F, ONE_MORE);
    case BEHIND_F0:
        return in_range(letter, 0x90, 0xBF, TWO_MORE);
    case BEHIND_F4:
        return in_range(letter, 0x80, 0x8F, TWO_MORE);
    case ESCAPED:
        return letter == 'u' ? HEX_1 : letter && strchr("\"\\/bfnrt", (int)letter) ? BETWEEN : NO_STRING;
    case HEX_1:
        return is_d(letter) ? BEHIND_D : is_hex(letter) ? HEX_2 : NO_STRING;
    case HEX_2:
    case HEX_3:
        return is_hex(letter) ? at + 1 : NO_STRING;
    case HEX_4:
        return is_hex(letter) ? BETWEEN : NO_STRING;
    case BEHIND_D:
        if (letter >= '0' && letter <= '7') return HEX_3;
        return letter == '8' || letter == '9' || (is_hex(letter) && (letter | 0x20) <= 'b') ? HIGH_3 : NO_STRING;
    case HIGH_3:
        return is_hex(letter) ? HIGH_4 : NO_STRING;
    case HIGH_4:
        return is_hex(letter) ? SECOND : NO_STRING;
    case SECOND:
        return letter == '\\' ? SECOND_U : NO_STRING;
    case SECOND_U:
        return letter == 'u' ? SECOND_1 : NO_STRING;
    case SECOND_1:
        return is_d(letter) ? SECOND_2 : NO_STRING;
    case SECOND_2:
        return is_hex(letter) && !is_digit(letter) && (letter | 0x20) >= 'c' ? HEX_3 : NO_STRING;
    default:
        return NO_STRING;
    }
}

/* One letter more of a JSON key that is not declared. Only what must be is escaped, and in one way, so that no key is
 * spelled in two ways. */
static inline uint32_t text_key_step(uint32_t at, unsigned letter) {
    bool low = is_digit(letter) || (letter >= 'a' && letter <= 'f');
    switch (at) {
    case ESCAPED:
        return letter == 'u' ? HEX_1 : letter && strchr("\"\\bfnrt", (int)letter) ? BETWEEN : NO_STRING;
    case HEX_1:
    case HEX_2:
        return letter == '0' ? at + 1 : NO_STRING;
    case HEX_3:
        return letter == '0' ? HEX_4 : letter == '1' ? HIGH_4 : NO_STRING;
    case HEX_4:
        return low && !strchr("89acd", (int)letter) ? BETWEEN : NO_STRING;
    case HIGH_4:
        return low ? BETWEEN : NO_STRING;
    default:
        return text_step(at, letter, true);
    }
}

#endif
