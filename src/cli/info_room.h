/* How many sessions fit, with its numbers: for `info --sessions` and for what a server says before it starts. */
#ifndef KAKEYA_CLI_INFO_ROOM_H
#define KAKEYA_CLI_INFO_ROOM_H

#include "cli/info.h"
#include "measure/session_room.h"

enum { INFO_MOST_LENGTHS = 6 };

typedef struct info_room_cell {
    bool possible;
    room_session session;
    size_t sessions; /* that fit at once */
} info_room_cell;

struct info_room {
    room_device device;
    int threads, image_budget; /* 0: the model's */
    bool given, limited;       /* the memory: it was said, or it is the limit's and not what is free */
    size_t memory;
    size_t weights_limit;                  /* 0: none */
    room_engine engine[INFO_MOST_LENGTHS]; /* by length */
    kakeya_kv_format format;
    int n, tokens[INFO_MOST_LENGTHS]; /* in ascending order */
    info_room_cell cell[INFO_MOST_LENGTHS][INFO_POLICIES];
};

/* Tokens of the longest session that fits under a policy alone; 0: not even the shortest does. */
int info_room_longest(const info_subject *s, const info_room *room, const info_policy *policy);

#endif
