/* What routers are told of a store: every beginning that is published can be resumed from its end, in memory, from
 * files and behind a restart, whatever was given up meanwhile; texts of different salts share nothing; and the messages
 * are the bytes that consumers read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/kv_blocks.h"
#include "serve/kv_messages.h"

#include "scratch.h"
#include "store_support.h"

/* ------------------------------------------------------------------------------------------------------ a consumer */

enum { MOST_KNOWN = 8192 };

/* A block as a consumer remembers it, in one medium. */
typedef struct known_block {
    uint64_t hash, parent; /* parent 0: it begins a text */
    int32_t ids[KV_BLOCK_TOKENS];
    char salt[8]; /* of a block that begins a text */
} known_block;

typedef struct consumer {
    known_block known[KV_MEDIA][MOST_KNOWN];
    size_t n[KV_MEDIA];
    size_t events;
} consumer;

static known_block *find_block(consumer *c, kv_medium medium, uint64_t hash) {
    for (size_t i = 0; i < c->n[medium]; i++)
        if (c->known[medium][i].hash == hash) return &c->known[medium][i];
    return NULL;
}

static void take_stored(consumer *c, const kv_block_event *e) {
    uint64_t parent = e->parent ? *e->parent : 0;
    if (parent && !find_block(c, e->medium, parent)) fail_msg("a block whose parent nobody knows");
    for (size_t i = 0; i < e->n; i++) {
        if (find_block(c, e->medium, e->hashes[i])) fail_msg("a block that is known already");
        assert_true(c->n[e->medium] < MOST_KNOWN);
        known_block *b = &c->known[e->medium][c->n[e->medium]++];
        *b = (known_block){.hash = e->hashes[i], .parent = parent};
        memcpy(b->ids, e->ids + i * KV_BLOCK_TOKENS, sizeof b->ids);
        if (!parent && e->salt) snprintf(b->salt, sizeof b->salt, "%s", e->salt);
        parent = b->hash;
    }
}

static void take_removed(consumer *c, const kv_block_event *e) {
    for (size_t i = 0; i < e->n; i++) {
        known_block *b = find_block(c, e->medium, e->hashes[i]);
        if (!b) fail_msg("a block is removed that nobody knows");
        *b = c->known[e->medium][--c->n[e->medium]];
    }
}

static void consume(void *user, const kv_block_event *e) {
    consumer *c = user;
    c->events++;
    if (e->type == KV_BLOCKS_STORED) take_stored(c, e);
    if (e->type == KV_BLOCKS_REMOVED) take_removed(c, e);
    if (e->type == KV_BLOCKS_CLEARED) memset(c->n, 0, sizeof c->n);
}

/* The text that ends with the block; returns its tokens. */
static size_t text_of(consumer *c, kv_medium medium, const known_block *end, int32_t *ids, const char **salt) {
    const known_block *path[MOST_TOKENS / KV_BLOCK_TOKENS + 1];
    size_t n = 0;
    for (const known_block *b = end; b; b = b->parent ? find_block(c, medium, b->parent) : NULL) {
        assert_true(n < sizeof path / sizeof *path);
        path[n++] = b;
    }
    assert_int_equal(path[n - 1]->parent, 0); /* no block is left without those before it */
    for (size_t i = 0; i < n; i++) memcpy(ids + i * KV_BLOCK_TOKENS, path[n - 1 - i]->ids, sizeof path[i]->ids);
    *salt = path[n - 1]->salt[0] ? path[n - 1]->salt : NULL;
    return n * KV_BLOCK_TOKENS;
}

static bool goes_on(const consumer *c, kv_medium medium, uint64_t hash) {
    for (size_t i = 0; i < c->n[medium]; i++)
        if (c->known[medium][i].parent == hash) return true;
    return false;
}

/* A request that begins with what the block ends and goes on as nobody did: nothing of the beginning is computed, but
 * for its last row, where it ends in an answer (docs/reference/kv-events.md). */
static void assert_resumes(prefix_store *store, consumer *c, kv_medium medium, const known_block *end,
                           const char *what) {
    int32_t ids[MOST_TOKENS + 1];
    const char *salt;
    size_t n = text_of(c, medium, end, ids, &salt);
    char copy[8] = "";
    if (salt) snprintf(copy, sizeof copy, "%s", salt);
    ids[n] = FAKE_VOCAB - 1;
    kakeya_session *session = NULL;
    store_hit hit;
    ok(store_take(store, salt ? copy : NULL, ids, n + 1, true, &session, &hit, error));
    if (hit.tokens + 1 < n)
        fail_msg("%s: medium %d: %zu tokens are published, %zu are found", what, (int)medium, n, hit.tokens);
    if (medium == KV_MEDIUM_DISK)
        kakeya_session_close(session);
    else
        store_give(store, salt ? copy : NULL, session, n);
}

/* ---------------------------------------------------------------------------------------------------- random talks */

typedef struct talk {
    request r;
    const char *salt;
} talk;

static store_options options_of(kv_blocks *blocks, const char *directory, size_t ram_bytes) {
    return (store_options){.ram_bytes = ram_bytes,
                           .max_live = 3,
                           .directory = directory,
                           .blocks = blocks,
                           .idle_delay = 0.02, /* the saver is at work meanwhile */
                           .checkpoint_delay = 0.02,
                           .least_file_tokens = 32,
                           .model = "toy"};
}

static void serve_talk(prefix_store *store, talk *t, const size_t *stops, size_t n_stops) {
    request *r = &t->r;
    kakeya_session *session = NULL;
    ok(store_take(store, t->salt, r->ids, r->n, true, &session, &r->hit, error));
    for (size_t i = 0; i < n_stops; i++) {
        size_t held;
        (void)kakeya_session_tokens(session, &held);
        if (stops[i] <= held) continue;
        ok(kakeya_session_sync(session, r->ids, stops[i], NULL, NULL, NULL, error));
        store_checkpoint(store, t->salt, session, i ? STORE_PROMPT_END : STORE_SYSTEM_TURN);
    }
    ok(kakeya_session_sync(session, r->ids, r->n, NULL, NULL, NULL, error));
    answer(session, r, 3, 0);
    store_give(store, t->salt, session, r->n);
}

/* In a store of its own, which knows nothing but the files. */
static void check_files(kakeya_engine *engine, const kakeya_session_options *so, const char *directory, size_t least) {
    consumer *c = calloc(1, sizeof *c);
    kv_blocks *blocks = kv_blocks_open(consume, c);
    assert_non_null(c);
    prefix_store *store = open_store(engine, so, options_of(blocks, directory, 0));
    assert_in_range(c->n[KV_MEDIUM_DISK], least, MOST_KNOWN);
    for (size_t i = 0; i < c->n[KV_MEDIUM_DISK]; i++)
        if (!goes_on(c, KV_MEDIUM_DISK, c->known[KV_MEDIUM_DISK][i].hash))
            assert_resumes(store, c, KV_MEDIUM_DISK, &c->known[KV_MEDIUM_DISK][i], "files");
    store_close(store, 0);
    for (int m = 0; m < KV_MEDIA; m++) assert_int_equal(c->n[m], 0);
    kv_blocks_close(blocks);
    free(c);
}

/* reach: how far a session can go back; -1: anywhere. */
static void random_talks(int reach, size_t ram_bytes, const char *directory, uint64_t seed) {
    enum { TALKS = 8, REQUESTS = 400 };
    static const char *const salts[] = {NULL, NULL, "a", "b"};
    fake_script script = fake_script_default();
    script.truncate_reach = reach;
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    consumer *c = calloc(1, sizeof *c);
    kv_blocks *blocks = kv_blocks_open(consume, c);
    assert_non_null(c);
    prefix_store *store = open_store(engine, &so, options_of(blocks, directory, ram_bytes));
    talk *talks = calloc(TALKS, sizeof *talks);
    assert_non_null(talks);
    for (size_t i = 0; i < TALKS; i++) talks[i].salt = salts[i % 4];
    size_t checked = 0;
    uint64_t at = 0;
#define draw(n) ((size_t)(random_uniform_at(seed, at++) * (double)(n)))
    for (int i = 0; i < REQUESTS; i++) {
        talk *t = &talks[draw(TALKS)];
        request *r = &t->r;
        if (r->n_all < 70 || r->n_all > 330) {
            const request *like = &talks[draw(TALKS)].r;
            r->n_all = 30 + draw(200);
            fake_prompt(r->ids, r->n_all, 900 + draw(3), FAKE_VOCAB - 1);
            if (like->n_all > r->n_all) memmove(r->ids, like->ids, draw(r->n_all) * sizeof *r->ids);
        } else if (draw(4) == 0) {
            r->n_all -= draw(60); /* an edited history */
        }
        size_t more = 1 + draw(30);
        fake_prompt(r->ids + r->n_all, more, at, FAKE_VOCAB - 1);
        r->n = r->n_all + more;
        const size_t stops[] = {r->n / 2, r->n - 1};
        serve_talk(store, t, stops, draw(3));
        kv_medium medium = ram_bytes && draw(2) ? KV_MEDIUM_CPU : KV_MEDIUM_GPU;
        size_t first = draw(c->n[medium] + 1), n = c->n[medium];
        const known_block *end = NULL;
        for (size_t k = 0; k < n && !end; k++) { /* where it can go back but little: an end, not the way to one */
            const known_block *b = &c->known[medium][(first + k) % n];
            if (reach < 0 || !goes_on(c, medium, b->hash)) end = b;
        }
        if (!end) continue;
        assert_resumes(store, c, medium, end, "memory");
        checked++;
    }
#undef draw
    assert_true(checked > 100);
    store_counts counts = counts_of(store);
    assert_true(counts.evictions > 0);
    store_close(store, 60);
    for (int m = 0; m < KV_MEDIA; m++) assert_int_equal(c->n[m], 0); /* all that was said to be there is gone */
    if (directory) check_files(engine, &so, directory, 20);
    kv_blocks_close(blocks);
    free(c);
    free(talks);
    close_all(NULL, engine, &script);
}

static void test_published_is_resumable(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        char name[16];
        snprintf(name, sizeof name, "talks%d", (int)seed);
        random_talks(-1, 30000, NULL, seed);
        random_talks(16, 20000, scratch_path(name), seed);
        random_talks(16, 0, NULL, seed);
    }
}

/* ------------------------------------------------------------------------------------------------------------ salts */

/* The same prompt under other salts, in memory and in files, is computed anew; under its own it is found. */
static void test_salts(void **state) {
    (void)state;
    static const char *const salts[] = {NULL, "a", "b"};
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so = session_options();
    const char *directory = scratch_path("salts");
    talk t = {.r = {.n = 200}};
    fake_prompt(t.r.ids, 200, 1, FAKE_VOCAB);
    const size_t stops[] = {190};
    for (int round = 0; round < 2; round++) { /* the second finds it in files */
        prefix_store *store = open_store(engine, &so, options_of(NULL, directory, 1 << 20));
        for (size_t i = 0; i < 3; i++) {
            for (int again = 0; again < 2; again++) {
                t.r.n = 200;
                t.salt = salts[i];
                serve_talk(store, &t, stops, 1);
                bool found = again || round;
                if ((t.r.hit.tokens > 0) != found)
                    fail_msg("round %d, salt %s: %zu tokens are found", round, salts[i] ? salts[i] : "none",
                             t.r.hit.tokens);
            }
        }
        t.salt = "c";
        t.r.n = 200;
        kakeya_session *session = NULL;
        ok(store_take(store, "c", t.r.ids, 200, true, &session, &t.r.hit, error));
        assert_int_equal(t.r.hit.tokens, 0);
        kakeya_session_close(session);
        store_close(store, 60);
    }
    close_all(NULL, engine, &script);
}

/* --------------------------------------------------------------------------------------------------------- messages */

static void assert_bytes(const text_buffer *text, const char *expected, size_t n, const char *what) {
    /* behind the head of the batch, [timestamp, [ */
    enum { HEAD = 1 + 9 + 1 };
    assert_false(text->failed);
    if (text->n != HEAD + n + 1 || memcmp(text->data + HEAD, expected, n) != 0) fail_msg("%s: other bytes", what);
    assert_memory_equal(text->data, "\x93\xcb\x40\x00\0\0\0\0\0\0\x91", HEAD);
    assert_int_equal(text->data[HEAD + n], 0);
}

static void test_messages(void **state) {
    (void)state;
    int32_t ids[KV_BLOCK_TOKENS] = {0, 127, 128, 255, 256, 65535, 65536, 262143};
    const uint64_t hashes[] = {UINT64_C(0x8001020304050607), 5}, parent = 70000;
    kv_block_event e = {
        .type = KV_BLOCKS_STORED, .medium = KV_MEDIUM_DISK, .hashes = hashes, .n = 1, .ids = ids, .salt = "s"};
    text_buffer text = {0};
    static const char first[] =
        "\x89\xa4type\xab"
        "BlockStored\xac"
        "block_hashes\x91\xcf\x80\x01\x02\x03\x04\x05\x06\x07\xa6"
        "medium\xa4"
        "DISK\xb1"
        "parent_block_hash\xc0\xa9"
        "token_ids\xdd\x00\x00\x00\x10\x00\x7f\xcc\x80\xcc\xff\xcd\x01\x00\xcd\xff\xff\xce\x00\x01"
        "\x00\x00\xce\x00\x03\xff\xff\0\0\0\0\0\0\0\0\xaa"
        "block_size\x10\xa7"
        "lora_id\xc0\xa9"
        "lora_name\xc0\xaa"
        "extra_keys\x91\x91\xa1s";
    kv_message_write(&text, &e, 2);
    assert_bytes(&text, first, sizeof first - 1, "stored");
    text_clear(&text);
    e.parent = &parent;
    kv_message_write(&text, &e, 2);
    assert_non_null(memmem(text.data, text.n, "parent_block_hash\xce\x00\x01\x11\x70", 22));
    assert_non_null(memmem(text.data, text.n, "extra_keys\xc0", 11)); /* a key of the first block of a text alone */
    text_clear(&text);
    e.n = 2; /* the text's second and third block: one picture comes from the first, one begins in the third */
    int32_t more[2 * KV_BLOCK_TOKENS] = {[0] = -5, [1] = 7, [2 * KV_BLOCK_TOKENS - 1] = -9};
    const kv_picture pictures[] = {{2, 3, "before"}, {6, 11, "ab"}, {47, 20, "cd"}, {70, 20, "behind"}};
    e.ids = more;
    e.first = KV_BLOCK_TOKENS;
    e.media_token = 100;
    e.pictures = pictures;
    e.n_pictures = 4;
    kv_message_write(&text, &e, 2);
    static const char with_pictures[] = "\xaa"
                                        "extra_keys\x92"
                                        "\x91\x92\xa2"
                                        "ab\xd3\xff\xff\xff\xff\xff\xff\xff\xf6"
                                        "\x91\x92\xa2"
                                        "cd\x0f";
    assert_non_null(memmem(text.data, text.n, with_pictures, sizeof with_pictures - 1));
    assert_non_null(memmem(text.data, text.n, "token_ids\xdd\x00\x00\x00\x20\x64\x07", 16));
    text_clear(&text);
    e.first = 0; /* a text's salt stands behind the pictures */
    e.parent = NULL;
    kv_message_write(&text, &e, 2);
    static const char with_salt[] = "extra_keys\x92\x93\x92\xa6"
                                    "before\x02\x92\xa2"
                                    "ab\x06\xa1s\x91\x92\xa2"
                                    "ab\xd3";
    assert_non_null(memmem(text.data, text.n, with_salt, sizeof with_salt - 1));
    text_clear(&text);
    e.n_pictures = 0;
    e.salt = "x\xc0\x80y"; /* U+0000 in a text that ends at a NUL */
    kv_message_write(&text, &e, 2);
    assert_non_null(memmem(text.data, text.n, "extra_keys\x92\x91\xa3x\0y\xc0", 10 + 7));
    text_clear(&text);
    static const char removed[] = "\x83\xa4type\xac"
                                  "BlockRemoved\xac"
                                  "block_hashes\x92\xcf\x80\x01\x02\x03\x04\x05\x06\x07\x05\xa6"
                                  "medium\xa3"
                                  "GPU";
    kv_message_write(&text, &(kv_block_event){.type = KV_BLOCKS_REMOVED, .hashes = hashes, .n = 2}, 2);
    assert_bytes(&text, removed, sizeof removed - 1, "removed");
    text_clear(&text);
    static const char cleared[] = "\x81\xa4type\xb0"
                                  "AllBlocksCleared";
    kv_message_write(&text, &(kv_block_event){.type = KV_BLOCKS_CLEARED}, 2);
    assert_bytes(&text, cleared, sizeof cleared - 1, "cleared");
    text_free(&text);
}

/* --------------------------------------------------------------------------------------------------------- counting */

/* Many paths of few beginnings, added and removed at random: a block is known while a path has it. */
static void test_counting(void **state) {
    (void)state;
    enum { PATHS = 40, STEPS = 2000, LONGEST = 160 };
    consumer *c = calloc(1, sizeof *c);
    kv_blocks *blocks = kv_blocks_open(consume, c);
    assert_non_null(c);
    kv_path *paths[PATHS] = {0};
    uint64_t at = 0;
#define draw(n) ((size_t)(random_uniform_at(7, at++) * (double)(n)))
    for (int step = 0; step < STEPS; step++) {
        size_t i = draw(PATHS);
        if (paths[i]) {
            kv_blocks_remove(blocks, paths[i]);
            paths[i] = NULL;
            continue;
        }
        int32_t ids[LONGEST];
        size_t n = draw(LONGEST + 1), turn = draw(LONGEST);
        for (size_t k = 0; k < LONGEST; k++) ids[k] = k < turn ? 1 : (int32_t)draw(2);
        kv_medium medium = (kv_medium)draw(KV_MEDIA);
        const char *salt = draw(3) ? NULL : "s";
        paths[i] = kv_blocks_add(blocks, medium, salt, ids, n);
        assert_true((paths[i] != NULL) == (n >= KV_BLOCK_TOKENS));
        kv_block_counts counts;
        kv_blocks_count(blocks, &counts);
        for (int m = 0; m < KV_MEDIA; m++) assert_int_equal(counts.blocks[m], c->n[m]);
    }
#undef draw
    for (size_t i = 0; i < PATHS; i++) kv_blocks_remove(blocks, paths[i]);
    for (int m = 0; m < KV_MEDIA; m++) assert_int_equal(c->n[m], 0);
    size_t events = c->events;
    kv_blocks_clear(blocks, true);
    assert_int_equal(c->events, events + 1);
    int32_t ids[KV_BLOCK_TOKENS] = {0};
    kv_blocks_remove(blocks, kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, KV_BLOCK_TOKENS));
    assert_int_equal(c->events, events + 1); /* nothing is said behind the last word */
    kv_blocks_close(blocks);
    free(c);
}

/* ---------------------------------------------------------------------------------------------------------- pictures
 */

typedef struct told {
    size_t events, first, n, begin, rows;
    uint64_t last;
    char digest[IMAGE_DIGEST_TEXT];
    int32_t image_token;
} told;

static void hear(void *user, const kv_block_event *e) {
    told *t = user;
    t->events++;
    if (e->type != KV_BLOCKS_STORED) return;
    t->first = e->first;
    t->n = e->n;
    t->last = e->hashes[e->n - 1];
    t->image_token = e->media_token;
    if (!e->n_pictures) return;
    t->begin = e->pictures[e->n_pictures - 1].begin;
    t->rows = e->pictures[e->n_pictures - 1].n;
    snprintf(t->digest, sizeof t->digest, "%s", e->pictures[e->n_pictures - 1].digest);
}

static void put_picture(int32_t *ids, size_t begin, size_t n, const unsigned char *digest) {
    for (size_t k = 0; k < n; k++) ids[begin + k] = image_digest_key(digest, k);
}

/* Pictures are named by what their keys hold; what only looks like one is not told of; equal tokens with other pictures
 * are other blocks. */
static void test_pictures(void **state) {
    (void)state;
    enum { N = 6 * KV_BLOCK_TOKENS };
    unsigned char one[IMAGE_DIGEST_BYTES], other[IMAGE_DIGEST_BYTES];
    char text[IMAGE_DIGEST_TEXT];
    for (int i = 0; i < IMAGE_DIGEST_BYTES; i++)
        one[i] = (unsigned char)(255 - 7 * i), other[i] = (unsigned char)(i * 11);
    told t = {0};
    kv_blocks *blocks = kv_blocks_open(hear, &t);
    int32_t ids[N] = {0};
    put_picture(ids, 5, 40, one);
    assert_null(kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, N)); /* nobody has said what stands for pictures */
    kv_blocks_set_media_token(blocks, 19);
    kv_path *path = kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, N);
    assert_non_null(path);
    image_digest_text(one, text);
    assert_string_equal(t.digest, text);
    assert_int_equal(t.image_token, 19);
    assert_true(t.begin == 5 && t.rows == 40 && t.first == 0 && t.n == N / KV_BLOCK_TOKENS);
    uint64_t before = t.last;
    put_picture(ids, 60, 30, other); /* the first three blocks are known */
    kv_path *longer = kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, N);
    image_digest_text(other, text);
    assert_string_equal(t.digest, text);
    assert_true(t.begin == 60 && t.rows == 30 && t.first == 3 * KV_BLOCK_TOKENS && t.n == 3);
    kv_blocks_remove(blocks, longer);
    put_picture(ids, 5, 40, other);
    memset(ids + 60, 0, 30 * sizeof *ids);
    kv_path *changed = kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, N);
    assert_true(t.first == 0 && t.n == N / KV_BLOCK_TOKENS && t.last != before);
    kv_blocks_remove(blocks, changed);
    kv_blocks_remove(blocks, path);
    size_t events = t.events;
    ids[20] = -1; /* no digest has this key here */
    assert_null(kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, N));
    memset(ids, 0, sizeof ids);
    put_picture(ids, 5, 8, one); /* too few to tell */
    assert_null(kv_blocks_add(blocks, KV_MEDIUM_GPU, NULL, ids, N));
    assert_int_equal(t.events, events);
    kv_blocks_close(blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counting),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_published_is_resumable),
    };
    return cmocka_run_group_tests_name("kv_blocks", tests, scratch_setup, scratch_teardown);
}
