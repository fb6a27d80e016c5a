/* Why an entry of the prefix store was made; the numbers stand in files. */
#ifndef KAKEYA_SERVE_STORE_REASON_H
#define KAKEYA_SERVE_STORE_REASON_H

typedef enum store_reason {
    STORE_PROMPT_END = 1, /* the stable end of a prompt: the conversation without the opened turn */
    STORE_SYSTEM_TURN,    /* the end of the leading system turn */
    STORE_TURN_END,       /* the end of an answer */
    STORE_GRID,           /* inside a long prompt */
    STORE_IDLE,           /* an idle session */
    STORE_SHUTDOWN,       /* a session at the end of the server */
} store_reason;

#endif
