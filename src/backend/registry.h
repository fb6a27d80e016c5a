/* The backends of this process: those that are linked in, and plugins that lie beside the program.
 *
 * A backend of this project that is not linked in is looked for as libkakeya-NAME.so in the folders of $KAKEYA_PLUGINS
 * (between colons) if that is set, else beside the program or library, in kakeya/ there, and in lib/kakeya of the
 * prefix. It is loaded when a backend is first chosen, once for the process, and stays. A plugin holds its own copy of
 * what it needs of the library; what passes between the two is pointers to the structures of their common headers,
 * which is why a plugin whose headers were others is refused. */
#ifndef KAKEYA_BACKEND_REGISTRY_H
#define KAKEYA_BACKEND_REGISTRY_H

#include "backend/backend.h"

enum { BACKEND_KINDS = 3, BACKEND_ABOUT = 640 };

/* What people are told of a backend. */
typedef struct backend_listing {
    const char *name;
    bool built_in;
    const char *plugin;        /* the file that it was loaded from; NULL: none */
    bool usable;               /* it is there, and so is its device */
    bool automatic;            /* `--backend auto` takes it */
    char about[BACKEND_ABOUT]; /* what it computes on, or why it is not used */
} backend_listing;

/* Every backend that the project has, in the order in which `auto` prefers them. */
void backend_list(backend_listing out[BACKEND_KINDS]);

/* Why a plugin that was found is not used, for people; NULL: none was refused. Known once a backend has been chosen. */
const char *backend_refused_plugin(void);

#endif
