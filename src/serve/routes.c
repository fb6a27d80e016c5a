#include "serve/routes.h"

enum { PUBLIC = ROUTE_PUBLIC | ROUTE_EARLY };

const route serve_routes[] = {
    {"/livez", CALL_GET, PUBLIC, liveness_call},      {"/health", CALL_GET, PUBLIC, health_call},
    {"/healthz", CALL_GET, PUBLIC, health_call},      {"/v1/health", CALL_GET, PUBLIC, health_call},
    {"/readyz", CALL_GET, PUBLIC, health_call},       {"/", CALL_GET, PUBLIC, page_call},
    {"/favicon.ico", CALL_GET, PUBLIC, favicon_call},
};
const size_t serve_n_routes = sizeof serve_routes / sizeof *serve_routes;
