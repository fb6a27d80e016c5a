/* kakeya remote: evaluations on a machine that is not here. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/remote.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} verbs[] = {
    {"init", remote_init, "set up this end: the bus, a name, a key"},
    {"allow", remote_allow, "allow a requester, or trust a worker"},
    {"run", remote_run, "request an evaluation"},
    {"status", remote_status, "show the state of a request"},
    {"list", remote_list, "list requests and their outcomes"},
    {"fetch", remote_fetch, "fetch a result, verify it and check its report here"},
    {"cancel", remote_cancel, "cancel a request that waits or runs"},
    {"clean", remote_clean, "delete old requests and results from the bus and from here"},
    {"serve", remote_serve, "run a worker, which runs what others request"},
    {"presets", remote_presets, "list presets with parameters and bounds"},
    {"doctor", remote_doctor, "check this end and say how to fix what does not work"},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

static const char usage[] =
    "usage: kakeya remote init|allow|run|status|list|fetch|cancel|clean|serve|presets|doctor [OPTION]...\n";

int cli_remote(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "kakeya remote: name a verb\n%s", usage);
        return CLI_USAGE;
    }
    for (int i = 0; i < VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) return verbs[i].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "--list-verbs") == 0) {
        for (int i = 0; i < VERBS; i++) cli_list_words((cli_word[]){{verbs[i].name, verbs[i].summary}, {0}});
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(usage, stdout);
        fputs("\nRequests and results travel as signed files over any git remote, the bus. Neither end accepts a\n"
              "connection. A worker runs presets of its own program and nothing else.\n\n",
              stdout);
        for (int i = 0; i < VERBS; i++) printf("  %-8s %s\n", verbs[i].name, verbs[i].summary);
        printf("\nkakeya remote VERB --help explains one.\n\nExample:\n"
               "  kakeya remote run niah --param lines=12,60 --wait --report r.json && kakeya gate r.json\n");
        return CLI_DONE;
    }
    fprintf(stderr, "kakeya remote: unknown %s '%s'\n%s", argv[1][0] == '-' ? "option" : "verb", argv[1], usage);
    return CLI_USAGE;
}
