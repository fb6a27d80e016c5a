/* The page that chats: one file without anything from elsewhere, compiled in. Its policy lets exactly its own script
 * run, which the script's digest names. */
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "serve/routes.h"
#include <page_html.h> /* made by CMake out of page.html */

enum { DIGEST = 32, BASE64 = 4 * ((DIGEST + 2) / 3) + 1 };

static const char favicon[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><circle cx=\"8\" cy=\"8\" "
    "r=\"7\" fill=\"#28614a\"/><path d=\"M6 4v8M10.5 4.5 6.5 8l4 3.5\" fill=\"none\" "
    "stroke=\"#fff\" stroke-width=\"1.6\"/></svg>";

static char policy[256];

static void make_policy(void) {
    static const char begin[] = "<script>", end[] = "</script>";
    const char *page = (const char *)page_html;
    const char *script = memmem(page, sizeof page_html, begin, sizeof begin - 1);
    const char *behind =
        script ? memmem(script, (size_t)(page + sizeof page_html - script), end, sizeof end - 1) : NULL;
    unsigned char digest[DIGEST], text[BASE64] = "";
    if (behind) {
        script += sizeof begin - 1;
        if (EVP_Digest(script, (size_t)(behind - script), digest, NULL, EVP_sha256(), NULL) == 1)
            EVP_EncodeBlock(text, digest, DIGEST);
    }
    snprintf(policy, sizeof policy,
             "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; script-src 'sha256-%s'; "
             "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             (char *)text);
}

void page_call(call *c) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (c->server->settings->no_page) {
        api_error error = {0};
        api_fail(&error, 404, "not_found", NULL, "there is no page here: the server was started with --no-page");
        call_fail(c, &error);
        return;
    }
    pthread_once(&once, make_policy);
    http_add_header(c->exchange, "content-security-policy", policy);
    http_add_header(c->exchange, "x-frame-options", "DENY");
    http_add_header(c->exchange, "referrer-policy", "no-referrer");
    text_buffer body = {0};
    text_bytes(&body, (const char *)page_html, sizeof page_html);
    call_reply(c, 200, "text/html; charset=utf-8", &body);
}

void favicon_call(call *c) {
    text_buffer body = {0};
    text_add(&body, favicon);
    call_reply(c, 200, "image/svg+xml", &body);
}
