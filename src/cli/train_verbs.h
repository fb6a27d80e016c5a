/* What `kakeya train` can train, beside an f_theta (train.c). */
#ifndef KAKEYA_CLI_TRAIN_VERBS_H
#define KAKEYA_CLI_TRAIN_VERBS_H

/* `kakeya train drafter ...`; argv[0] is "drafter". */
int cli_train_drafter(int argc, char **argv);

#endif
