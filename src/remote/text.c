#include "remote/text.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static bool is_one_of(char c, const char *set) { return c && strchr(set, c); }

#define DIGITS     "0123456789"
#define HEX_DIGITS DIGITS "abcdef"
#define LOWER_CASE "abcdefghijklmnopqrstuvwxyz"

bool remote_is_name(const char *text) {
    size_t length = strspn(text, LOWER_CASE DIGITS "._-");
    return length > 0 && length < REMOTE_NAME && !text[length] && is_one_of(text[0], LOWER_CASE DIGITS);
}

bool remote_is_sha256(const char *text) {
    return strspn(text, HEX_DIGITS) == REMOTE_SHA256 - 1 && !text[REMOTE_SHA256 - 1];
}

/* Whether the text has the form: 'd' is a digit, 'x' a hexadecimal one, anything else itself. */
static bool has_form(const char *text, const char *form) {
    for (; *form; text++, form++) {
        bool good = *form == 'd'   ? is_one_of(*text, DIGITS)
                    : *form == 'x' ? is_one_of(*text, HEX_DIGITS)
                                   : *text == *form;
        if (!good) return false;
    }
    return !*text;
}

static int digits(const char *text, int n) {
    int value = 0;
    for (int i = 0; i < n; i++) value = 10 * value + (text[i] - '0');
    return value;
}

/* Six numbers of the calendar as seconds since 1970; false where there is no such second. */
static bool seconds_of(int year, int month, int day, int hour, int minute, int second, int64_t *out) {
    struct tm wanted = {.tm_year = year - 1900,
                        .tm_mon = month - 1,
                        .tm_mday = day,
                        .tm_hour = hour,
                        .tm_min = minute,
                        .tm_sec = second};
    struct tm normal = wanted;
    time_t at = timegm(&normal);
    *out = (int64_t)at;
    return year >= 1970 && normal.tm_year == wanted.tm_year && normal.tm_mon == wanted.tm_mon &&
           normal.tm_mday == wanted.tm_mday && normal.tm_hour == wanted.tm_hour && normal.tm_min == wanted.tm_min &&
           normal.tm_sec == wanted.tm_sec;
}

static bool nonce_time(const char *nonce, int64_t *seconds) {
    return has_form(nonce, "ddddddddTddddddZ-xxxxxxxx") &&
           seconds_of(digits(nonce, 4), digits(nonce + 4, 2), digits(nonce + 6, 2), digits(nonce + 9, 2),
                      digits(nonce + 11, 2), digits(nonce + 13, 2), seconds);
}

bool remote_is_nonce(const char *text) {
    int64_t seconds;
    return nonce_time(text, &seconds);
}

int64_t remote_nonce_time(const char *nonce) {
    int64_t seconds = 0;
    nonce_time(nonce, &seconds);
    return seconds;
}

kakeya_status remote_make_nonce(int64_t now, char nonce[REMOTE_NONCE], kakeya_error *error) {
    unsigned char random[4];
    if (RAND_bytes(random, sizeof random) != 1) return error_set(error, KAKEYA_IO, "no random bytes for a nonce");
    time_t at = (time_t)now;
    struct tm t;
    gmtime_r(&at, &t);
    char text[96];
    snprintf(text, sizeof text, "%04d%02d%02dT%02d%02d%02dZ-%02x%02x%02x%02x", t.tm_year + 1900, t.tm_mon + 1,
             t.tm_mday, t.tm_hour, t.tm_min, t.tm_sec, random[0], random[1], random[2], random[3]);
    if (!remote_is_nonce(text)) return error_set(error, KAKEYA_INVALID_ARGUMENT, "the clock shows no time of our era");
    memcpy(nonce, text, REMOTE_NONCE);
    return KAKEYA_OK;
}

bool remote_time_read(const char *text, int64_t *seconds) {
    return has_form(text, "dddd-dd-ddTdd:dd:ddZ") &&
           seconds_of(digits(text, 4), digits(text + 5, 2), digits(text + 8, 2), digits(text + 11, 2),
                      digits(text + 14, 2), digits(text + 17, 2), seconds);
}

void remote_time_write(int64_t seconds, char text[REMOTE_TIME]) {
    time_t at = (time_t)seconds;
    struct tm t;
    char buffer[96];
    gmtime_r(&at, &t);
    snprintf(buffer, sizeof buffer, "%04d-%02d-%02dT%02d:%02d:%02dZ", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday,
             t.tm_hour, t.tm_min, t.tm_sec);
    memcpy(text, buffer, REMOTE_TIME - 1);
    text[REMOTE_TIME - 1] = '\0';
}

void remote_sha256(const void *data, size_t bytes, char digest[REMOTE_SHA256]) {
    unsigned char raw[EVP_MAX_MD_SIZE] = {0};
    unsigned length = 0;
    EVP_Digest(data, bytes, raw, &length, EVP_sha256(), NULL);
    for (size_t i = 0; i < (REMOTE_SHA256 - 1) / 2; i++) snprintf(digest + 2 * i, 3, "%02x", raw[i]);
}

/* The bytes of the UTF-8 character that begins at `text`, with its code in *code; 0 where there is none. */
static size_t character(const unsigned char *text, size_t bytes, uint32_t *code) {
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char c = text[0];
    size_t length = c < 0x80                ? 1
                    : c >= 0xc2 && c < 0xe0 ? 2
                    : c >= 0xe0 && c < 0xf0 ? 3
                    : c >= 0xf0 && c < 0xf5 ? 4
                                            : 0;
    if (!length || length > bytes) return 0;
    *code = length == 1 ? c : c & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (text[i] & 0x3fu);
    }
    return *code < smallest[length] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : length;
}

static bool is_printable(uint32_t code) {
    if (code == '\n' || code == '\t') return true;
    if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
    bool turns = code == 0x61c || (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                 (code >= 0x2066 && code <= 0x2069);
    return !turns;
}

size_t remote_printable(char *text, size_t bytes) {
    size_t to = 0;
    for (size_t from = 0; from < bytes;) {
        uint32_t code = 0;
        size_t length = character((const unsigned char *)text + from, bytes - from, &code);
        if (length && is_printable(code)) {
            memmove(text + to, text + from, length);
            to += length;
        } else {
            text[to++] = '?';
        }
        from += length ? length : 1;
    }
    return to;
}
