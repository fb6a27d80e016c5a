#include "cli/chat.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "base/error.h"
#include "cli/input.h"
#include "cli/saved_chat.h"
#include "cli/terminal.h"

static const char *prompt_text(EditLine *editor) {
    (void)editor;
    return "> ";
}

/* What was typed before a Ctrl-C and has not been read yet is given up. */
static void give_up_typing(void) { tcflush(STDIN_FILENO, TCIFLUSH); }

/* How soon a Ctrl-C is noticed that came just before the wait for a key began. */
enum { INTERRUPT_CHECK_MS = 100 };

/* Waits for one byte of the terminal. 1, 0 at the end of input, -1 after Ctrl-C. */
static ssize_t read_byte(char *out) {
    struct pollfd terminal = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        if (terminal_interrupted()) return -1;
        int ready = poll(&terminal, 1, INTERRUPT_CHECK_MS);
        if (ready < 0 && errno != EINTR) return -1;
        if (ready <= 0) continue;
        ssize_t got = read(STDIN_FILENO, out, 1);
        if (got < 0 && errno == EINTR) continue;
        return got < 0 ? 0 : got; /* a terminal that has gone is the end of input */
    }
}

/* Reads one character for the editor, whose own reader would go on after the first Ctrl-C. */
static int read_character(EditLine *editor, wchar_t *out) {
    (void)editor;
    char bytes[MB_LEN_MAX];
    size_t n = 0;
    while (n < sizeof bytes) {
        ssize_t got = read_byte(bytes + n);
        if (got <= 0) return (int)got;
        mbstate_t state = {0};
        size_t length = mbrtowc(out, bytes, ++n, &state);
        /* Ctrl-D typed while an answer ran, before the editor took the terminal over, arrives as NUL. */
        if (length == 0) *out = L'\004';
        if (length != (size_t)-1 && length != (size_t)-2) return 1;
        if (length == (size_t)-1) n = 0; /* not a character: dropped */
    }
    return 0;
}

static void print_commands(void) {
    printf("/help        this list\n"
           "/reset       forget the conversation\n"
           "/save FILE   keep the conversation and its memory in FILE\n"
           "/load FILE   go on with the conversation in FILE\n"
           "/image FILE  give your next message the picture in FILE, or FILE,budget=N: of N tokens at most\n"
           "/audio FILE  give your next message the sound in FILE\n"
           "/exit        leave (Ctrl-D as well)\n"
           "Ctrl-C ends an answer; at the prompt, twice leaves.\n");
}

typedef struct chat {
    const answer_options *options;
    kakeya_engine *engine;
    const kakeya_session_options *session_options;
    kakeya_session *session;
    conversation talk;
    size_t first;     /* messages that /reset keeps */
    int image_budget; /* of pictures that name none; 0: the model's */
} chat;

static void tell(const kakeya_error *error) { fprintf(stderr, "kakeya run: %s\n", error->message); }

static kakeya_status medium_tokens(const kakeya_engine *engine, const kakeya_media *media, int *tokens,
                                   kakeya_error *error) {
    return media->sound ? kakeya_engine_sound_tokens(engine, media->sound, tokens, error)
                        : kakeya_engine_image_tokens(engine, media, tokens, error);
}

/* The conversation's tokens and, in the order of their places, its pictures and sounds. */
static kakeya_status talk_tokens(const chat *c, kakeya_media **media, int32_t **ids, size_t *n, kakeya_error *error) {
    const conversation *talk = &c->talk;
    const kakeya_tokenizer *tokenizer = kakeya_engine_tokenizer(c->engine);
    if (!talk->n_media)
        return kakeya_message_tokens(tokenizer, talk->messages, talk->n, c->options->thinking, ids, n, error);
    int *lengths = calloc(2 * talk->n_media, sizeof *lengths), *sounds = lengths ? lengths + talk->n_media : NULL;
    char *json = conversation_print(talk);
    *media = calloc(talk->n_media, sizeof **media);
    kakeya_status status = KAKEYA_OK;
    kakeya_chat_options options;
    KAKEYA_INIT(&options);
    options.thinking = c->options->thinking;
    options.image_tokens = lengths;
    options.sound_tokens = sounds;
    if (!lengths || !json || !*media) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < talk->n_media && !status; i++) {
        (*media)[i] = talk->media[i].medium.media;
        status = medium_tokens(
            c->engine, &(*media)[i],
            talk->media[i].medium.is_sound ? &sounds[options.n_sounds++] : &lengths[options.n_images++], error);
    }
    if (!status) status = kakeya_chat_tokens(tokenizer, json, strlen(json), &options, ids, n, NULL, error);
    cJSON_free(json);
    free(lengths);
    return status;
}

/* One user turn. A failure is told and the turn forgotten; the chat goes on. */
static void answer_turn(chat *c, const char *line) {
    kakeya_error error = {0};
    answer a = {0};
    kakeya_stats stats;
    int32_t *ids = NULL;
    kakeya_media *media = NULL;
    size_t n = 0, before = c->talk.n;

    if (input_check_utf8("the message", line, strlen(line), &error)) goto failed;
    if (!conversation_add(&c->talk, "user", line)) {
        error_set(&error, KAKEYA_OUT_OF_MEMORY, "out of memory");
        goto failed;
    }
    terminal_clear_interrupt();
    if (talk_tokens(c, &media, &ids, &n, &error)) goto failed;
    if (kakeya_session_sync_media(c->session, ids, n, media, c->talk.n_media, NULL, terminal_progress, NULL, &error))
        goto failed;
    terminal_clear_progress();
    if (answer_generate(c->options, ANSWER_MESSAGE, NULL, 0, c->engine, c->session, &a, &stats, &error)) goto failed;
    answer_print_figures(c->engine, c->session_options, c->session, &stats);
    if (!conversation_add(&c->talk, "model", a.text.text ? a.text.text : "")) {
        error_set(&error, KAKEYA_OUT_OF_MEMORY, "out of memory");
        goto failed;
    }
    goto done;
failed:
    terminal_clear_progress();
    tell(&error);
    conversation_cut(&c->talk, before);
done:
    if (terminal_interrupted()) give_up_typing();
    terminal_clear_interrupt();
    answer_free(&a);
    free(media);
    kakeya_free(ids);
}

static void add_medium(chat *c, const char *given, bool is_sound) {
    const char *kind = is_sound ? "sound" : "picture";
    kakeya_error error = {0};
    cli_medium medium = {0};
    int tokens;
    if (*given == '-' && (!given[1] || (given[1] == ',' && !is_sound))) {
        printf("%s needs a file: standard input is this chat\n", is_sound ? "/audio" : "/image");
    } else if ((is_sound ? cli_sound_read(given, &medium, &error)
                         : cli_image_read("/image", given, c->image_budget, &medium, &error)) ||
               medium_tokens(c->engine, &medium.media, &tokens, &error)) {
        tell(&error);
        cli_medium_free(&medium);
    } else if (!conversation_add_medium(&c->talk, &medium)) {
        cli_medium_free(&medium);
        printf("out of memory for the %s\n", kind);
    } else {
        printf("(a %s of %d tokens stands before your next message)\n", kind, tokens);
    }
}

static void save(const chat *c, const char *path) {
    kakeya_error error = {0};
    if (c->talk.n == c->first) {
        printf("(there is nothing to save yet)\n");
    } else if (saved_chat_write(path, &c->talk, c->session, &error)) {
        tell(&error);
    } else {
        printf("(%zu messages saved in %s)\n", c->talk.n, path);
    }
}

static void load(chat *c, const char *path) {
    kakeya_error error = {0}, note;
    if (saved_chat_read(path, &c->talk, c->session, &note, &error)) {
        tell(&error);
        return;
    }
    c->first = c->talk.n && strcmp(c->talk.messages[0].role, "system") == 0;
    size_t n_tokens;
    kakeya_session_tokens(c->session, &n_tokens);
    if (note.status) {
        tell(&note);
        printf("(%zu messages loaded from %s; the next answer computes them anew)\n", c->talk.n, path);
    } else {
        printf("(%zu messages loaded from %s, with %zu tokens in memory)\n", c->talk.n, path, n_tokens);
    }
}

/* The file that a command names; NULL if the line is not this command. "": it names none. */
static const char *operand(const char *line, const char *name) {
    size_t bytes = strlen(name);
    if (strncmp(line, name, bytes) != 0 || (line[bytes] != ' ' && line[bytes])) return NULL;
    return line + bytes + strspn(line + bytes, " ");
}

/* False: the chat is over. */
static bool take_line(chat *c, const char *line) {
    const char *file;
    if (strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/help") == 0) {
        print_commands();
    } else if (strcmp(line, "/reset") == 0) {
        conversation_cut(&c->talk, c->first);
        printf("(the conversation starts anew)\n");
    } else if ((file = operand(line, "/image")) || (file = operand(line, "/audio")) ||
               (file = operand(line, "/save")) || (file = operand(line, "/load"))) {
        if (!*file) {
            printf("%.*s needs the name of a file\n", (int)strcspn(line, " "), line);
        } else if (line[1] == 'i' || line[1] == 'a') {
            add_medium(c, file, line[1] == 'a');
        } else if (line[1] == 's') {
            save(c, file);
        } else {
            load(c, file);
        }
    } else if (*line == '/' && strchr(line, ' ') == NULL) {
        printf("unknown command %s; /help lists the commands\n", line);
    } else if (*line) {
        answer_turn(c, line);
    }
    return true;
}

int chat_run(const answer_options *options, const char *system, int image_budget, kakeya_engine *engine,
             const kakeya_session_options *session_options, kakeya_session *session) {
    if (!kakeya_engine_has_tokenizer(engine)) {
        fprintf(stderr, "kakeya run: a chat needs a tokenizer, and the model has none; give --ids-file\n");
        return CLI_FAILED;
    }
    int result = CLI_FAILED;
    chat c = {.options = options,
              .engine = engine,
              .session_options = session_options,
              .session = session,
              .image_budget = image_budget};
    HistEvent event;
    EditLine *editor = el_init("kakeya", stdin, stdout, stderr);
    History *past = history_init();
    if (!editor || !past) {
        fprintf(stderr, "kakeya run: the line editor does not start on this terminal\n");
        goto done;
    }
    history(past, &event, H_SETSIZE, 1000);
    el_set(editor, EL_PROMPT, prompt_text);
    el_set(editor, EL_GETCFN, read_character);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, history, past);
    /* Ctrl-C makes a terminal throw away what it has not shown yet, and it does so after the program has been told:
     * what the program says about the Ctrl-C would be lost at times. */
    el_set(editor, EL_SETTY, "-d", "+noflsh", NULL);
    el_set(editor, EL_SETTY, "-x", "+noflsh", NULL);
    el_source(editor, NULL); /* the user's ~/.editrc */
    if (system) {
        if (!conversation_add(&c.talk, "system", system)) goto done;
        c.first = 1;
    }

    printf("%s%s on %s; /help lists the commands%s\n", terminal_dim(STDOUT_FILENO), "kakeya",
           kakeya_engine_backend(engine), terminal_plain(STDOUT_FILENO));
    bool interrupted_before = false;
    for (;;) {
        int length = 0;
        terminal_clear_interrupt();
        const char *line = el_gets(editor, &length);
        if (!line || length <= 0) {
            if (!terminal_interrupted()) break; /* Ctrl-D, or the terminal has gone */
            if (interrupted_before) break;
            interrupted_before = true;
            el_reset(editor);
            give_up_typing();
            printf("\n(Ctrl-C again or /exit leaves)\n");
            continue;
        }
        interrupted_before = false;
        char *text = strndup(line, strcspn(line, "\r\n"));
        if (!text) break;
        if (*text) history(past, &event, H_ENTER, line);
        bool more = take_line(&c, text);
        free(text);
        if (!more) break;
    }
    result = CLI_DONE;
done:
    conversation_free(&c.talk);
    if (past) history_end(past);
    if (editor) el_end(editor);
    return result;
}
