/* U+0000 in texts that end at a NUL. Texts with a length hold it as the byte that it is; where a text is a C string (in
 * trees of JSON, in stop strings and contents of messages) it is spelled as the two bytes C0 80, which no valid UTF-8
 * holds. Whoever makes a text of one kind out of one of the other calls these functions. */
#ifndef KAKEYA_BASE_NUL_H
#define KAKEYA_BASE_NUL_H

#include <stdbool.h>
#include <stddef.h>

#define NUL_SPELLING "\xC0\x80"

/* Whether a C string of so many bytes holds the spelling. */
bool nul_is_spelled(const char *text, size_t bytes);
/* The text that a C string of so many bytes means; returns its bytes, at most as many. `to` may be `text`. */
size_t nul_read(char *to, const char *text, size_t bytes);
/* The C string of a text, malloc'ed; NULL: out of memory. */
char *nul_spell(const char *text, size_t bytes);

#endif
