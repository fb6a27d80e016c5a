/* The verbs of `kakeya remote`; argv[0] is the verb's name. */
#ifndef KAKEYA_CLI_REMOTE_H
#define KAKEYA_CLI_REMOTE_H

int remote_init(int argc, char **argv);
int remote_allow(int argc, char **argv);
int remote_run(int argc, char **argv);
int remote_status(int argc, char **argv);
int remote_list(int argc, char **argv);
int remote_fetch(int argc, char **argv);
int remote_cancel(int argc, char **argv);
int remote_clean(int argc, char **argv);
int remote_serve(int argc, char **argv);
int remote_presets(int argc, char **argv);
int remote_doctor(int argc, char **argv);

/* Options of all of them: where the configuration and the state lie. */
#define REMOTE_PLACE_OPTIONS(PLACE)                                                                                    \
    CLI_TEXT("config", "DIR", &(PLACE).config, "configuration directory ($XDG_CONFIG_HOME/kakeya/remote)"),            \
        CLI_TEXT("state", "DIR", &(PLACE).state,                                                                       \
                 "directory for requests, runs and results ($XDG_STATE_HOME/kakeya/remote)")

typedef struct remote_place {
    const char *config, *state;
} remote_place;

#endif
