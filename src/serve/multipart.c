#include "serve/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_BOUNDARY = 70, MOST_HEADERS = 4096 };

static const char form_type[] = "multipart/form-data";

bool multipart_is_form(const char *content_type) {
    const size_t n = sizeof form_type - 1;
    return content_type && strncasecmp(content_type, form_type, n) == 0 && strchr("; \t", content_type[n]);
}

/* The value of a parameter such as ; name="value" in a header's value. False: there is none that fits. */
static bool find_parameter(const char *value, const char *key, char *out, size_t room) {
    const size_t length = strlen(key);
    for (const char *at = strchr(value, ';'); at; at = strchr(at, ';')) {
        at += 1 + strspn(at + 1, " \t");
        const bool found = strncasecmp(at, key, length) == 0 && at[length] == '=';
        at += strcspn(at, "=;");
        if (*at != '=') continue;
        const bool quoted = *++at == '"';
        at += quoted;
        size_t n = strcspn(at, quoted ? "\"" : "; \t");
        if (quoted && !at[n]) return false;
        if (found) {
            if (n == 0 || n >= room) return false;
            memcpy(out, at, n);
            out[n] = '\0';
            return true;
        }
        at += n;
    }
    return false;
}

static bool broken(api_error *error, const char *why) {
    return api_fail(error, 400, "invalid_form", NULL, "the body is not a form of multipart/form-data: %s", why);
}

/* Of the headers of a part: its name. */
static bool read_name(const char *headers, size_t bytes, char name[MULTIPART_NAME_BYTES]) {
    static const char key[] = "content-disposition:";
    char line[MOST_HEADERS];
    for (const char *end = headers + bytes; headers < end;) {
        const char *stop = memmem(headers, (size_t)(end - headers), "\r\n", 2);
        size_t n = (size_t)((stop ? stop : end) - headers);
        if (n >= sizeof line || memchr(headers, 0, n)) return false;
        memcpy(line, headers, n);
        line[n] = '\0';
        if (strncasecmp(line, key, sizeof key - 1) == 0)
            return find_parameter(line, "name", name, MULTIPART_NAME_BYTES);
        headers += n + (stop ? 2 : 0);
    }
    return false;
}

bool multipart_read(const char *content_type, const char *body, size_t bytes, multipart_field *out, size_t room,
                    size_t *n, api_error *error) {
    char delimiter[4 + MOST_BOUNDARY + 1] = "\r\n--";
    *n = 0;
    if (!multipart_is_form(content_type) || !find_parameter(content_type, "boundary", delimiter + 4, MOST_BOUNDARY + 1))
        return broken(error, "the content type has no boundary of 1 to 70 characters");
    const size_t length = strlen(delimiter);
    const char *end = body + bytes, *at;
    if (bytes >= length - 2 && memcmp(body, delimiter + 2, length - 2) == 0)
        at = body + length - 2;
    else if ((at = memmem(body, bytes, delimiter, length)) != NULL)
        at += length;
    else
        return broken(error, "its boundary is not in it");
    while (end - at < 2 || memcmp(at, "--", 2) != 0) {
        while (at < end && (*at == ' ' || *at == '\t')) at++;
        if (end - at < 2 || memcmp(at, "\r\n", 2) != 0) return broken(error, "it ends early");
        const size_t left = (size_t)(end - at), most = left < MOST_HEADERS ? left : MOST_HEADERS;
        const char *blank = memmem(at, most, "\r\n\r\n", 4);
        if (!blank) return broken(error, "a part has no end of its headers");
        const char *data = blank + 4;
        /* of a part without data, the delimiter begins where the headers end */
        const char *next = memmem(blank + 2, (size_t)(end - blank) - 2, delimiter, length);
        if (!next) return broken(error, "it ends early");
        if (*n == room) return broken(error, "it has too many parts");
        multipart_field *field = &out[*n];
        if (blank == at || !read_name(at + 2, (size_t)(blank - at) - 2, field->name))
            return broken(error, "a part has no name");
        field->data = data;
        field->bytes = next > data ? (size_t)(next - data) : 0;
        ++*n;
        at = next + length;
    }
    return true;
}
