/* Every path of the server. */
#ifndef KAKEYA_SERVE_ROUTES_H
#define KAKEYA_SERVE_ROUTES_H

#include "serve/call.h"

extern const route serve_routes[];
extern const size_t serve_n_routes;

/* One per file; each ends its call. */
void health_call(call *c); /* status.c */
void liveness_call(call *c);
void page_call(call *c); /* page.c */
void favicon_call(call *c);

#endif
