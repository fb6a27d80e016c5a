/* kakeya VERB [OPTION]...: finds the verb and hands over. */
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/platform.h"
#include "cli/about.h"
#include "cli/cli.h"
#include "cli/terminal.h"

typedef struct verb {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} verb;

static const verb verbs[] = {
    {"run", "answer a prompt, or chat", cli_run},
    {"serve", "answer HTTP clients", cli_serve},
    {"top", "watch a running server", cli_top},
    {"sessions", "list, show and remove saved sessions", cli_sessions},
    {"tokenize", "text to token ids and back", cli_tokenize},
    {"score", "log-likelihood of given tokens, logits and hidden states", cli_score},
    {"info", "architecture, parameters and memory of a model, before loading it", cli_info},
    {"explain", "the operations of a step, as a backend would run them", cli_explain},
    {"convert", "quantise a model: to a GGUF file or an MLX directory", cli_convert},
    {"bench", "speed beside what the hardware allows", cli_bench},
    {"eval", "recall, fidelity, speed and losslessness, with a report", cli_eval},
    {"verify", "certify that tokens do not depend on how they are computed", cli_verify},
    {"gate", "check reports of eval and verify by their raw rows", cli_gate},
    {"train", "an f_theta for restored attention, or a drafter, from text", cli_train},
    {"remote", "run evaluations on another machine", cli_remote},
};

enum { VERB_COUNT = sizeof verbs / sizeof verbs[0] };

static const char usage_line[] = "usage: kakeya VERB [OPTION]...   (kakeya --help lists the verbs)\n";

static void print_help(void) {
    printf("usage: kakeya VERB [OPTION]...\n\n"
           "kakeya runs Gemma 4 models with bounded K/V memory and lossless speculative decoding.\n\n"
           "Verbs:\n");
    for (int i = 0; i < VERB_COUNT; i++) printf("  %-10s  %s\n", verbs[i].name, verbs[i].summary);
    printf("\nkakeya VERB --help explains a verb; kakeya --version prints the version, and\n"
           "kakeya --version --verbose the build, its backends and its libraries.\n"
           "The model is --model DIR, else $KAKEYA_MODEL, else the bundled demo.\n\n"
           "Example:\n"
           "  kakeya run \"def fibonacci(n):\" --raw --max-tokens 64\n");
}

/* A verb on a thread with room, where `ulimit -s` leaves this one less than the library needs. */
typedef struct started_verb {
    const verb *verb;
    int argc, status;
    char **argv;
} started_verb;

static void *run_started(void *user) {
    started_verb *s = user;
    s->status = s->verb->run(s->argc, s->argv);
    return NULL;
}

static int run_verb(const verb *v, int argc, char **argv) {
    struct rlimit limit;
    started_verb s = {.verb = v, .argc = argc, .argv = argv};
    pthread_t thread;
    sigset_t all;
    bool room = getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= 2 * (rlim_t)KAKEYA_STACK_BYTES;
    if (room || platform_thread_create(&thread, run_started, &s) != 0) return v->run(argc, argv);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* they are the other thread's */
    pthread_join(thread, NULL);
    return s.status;
}

int main(int argc, char **argv) {
    /* Line editing works on characters; text is UTF-8 whatever the locale says. */
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    terminal_start();
    if (argc < 2) {
        fputs(usage_line, stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return terminal_finish("help", CLI_DONE);
    }
    if (strcmp(name, "--list-verbs") == 0) {
        for (int i = 0; i < VERB_COUNT; i++) cli_list_words((cli_word[]){{verbs[i].name, verbs[i].summary}, {0}});
        return terminal_finish("--list-verbs", CLI_DONE);
    }
    if (strcmp(name, "--version") == 0) {
        printf("kakeya %s\n", kakeya_version());
        if (argc > 2 && strcmp(argv[2], "--verbose") == 0) about_build(); /* what else follows changes nothing */
        return terminal_finish("--version", CLI_DONE);
    }
    for (int i = 0; i < VERB_COUNT; i++) {
        if (strcmp(name, verbs[i].name) == 0) {
            return terminal_finish(name, run_verb(&verbs[i], argc - 1, argv + 1));
        }
    }
    fprintf(stderr, "kakeya: unknown %s '%s'\n%s", name[0] == '-' ? "option" : "verb", name, usage_line);
    return CLI_USAGE;
}
