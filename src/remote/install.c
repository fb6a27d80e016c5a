#include "remote/install.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "remote/folders.h"

static const char unit_name[] = "kakeya-remote.service", agent_name[] = "kakeya.remote.plist";

install_system install_here(void) {
#ifdef __APPLE__
    return INSTALL_LAUNCHD;
#else
    return INSTALL_SYSTEMD;
#endif
}

/* A word of ExecStart=: quoted, so that blanks, quotes, variables and specifiers stay what they are. */
static void write_systemd_word(FILE *out, const char *word) {
    fputc('"', out);
    for (; *word; word++) {
        if (*word == '"' || *word == '\\') fputc('\\', out);
        if (*word == '%' || *word == '$') fputc(*word, out);
        fputc(*word, out);
    }
    fputc('"', out);
}

static void write_xml(FILE *out, const char *word) {
    for (; *word; word++) {
        switch (*word) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        default:
            fputc(*word, out);
        }
    }
}

static void write_unit(FILE *out, const char *const *words, size_t n) {
    fputs("# Written by `kakeya remote serve --install`.\n"
          "[Unit]\nDescription=kakeya remote: evaluations that others ask for over git\nDocumentation=man:kakeya(1)\n"
          "After=network.target\n\n[Service]\nExecStart=",
          out);
    for (size_t i = 0; i < n; i++) {
        if (i) fputc(' ', out);
        write_systemd_word(out, words[i]);
    }
    /* The run that is going on is ended and begins again with the next start. */
    fputs("\nRestart=always\nRestartSec=30\nTimeoutStopSec=60\nKillMode=mixed\nNoNewPrivileges=yes\nUMask=0077\n"
          "Nice=5\n\n"
          "[Install]\nWantedBy=default.target\n",
          out);
}

static void write_agent(FILE *out, const char *const *words, size_t n) {
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
          "<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" "
          "\"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n"
          "<!-- Written by `kakeya remote serve`. -->\n"
          "<plist version=\"1.0\">\n<dict>\n    <key>Label</key>\n    <string>kakeya.remote</string>\n"
          "    <key>ProgramArguments</key>\n    <array>\n",
          out);
    for (size_t i = 0; i < n; i++) {
        fputs("        <string>", out);
        write_xml(out, words[i]);
        fputs("</string>\n", out);
    }
    fputs("    </array>\n    <key>RunAtLoad</key>\n    <true/>\n    <key>KeepAlive</key>\n    <true/>\n"
          "    <key>ThrottleInterval</key>\n    <integer>30</integer>\n    <key>ProcessType</key>\n"
          "    <string>Background</string>\n</dict>\n</plist>\n",
          out);
}

kakeya_status install_text(install_system system, const char *const *words, size_t n, char **text,
                           kakeya_error *error) {
    size_t bytes = 0;
    *text = NULL;
    for (size_t i = 0; i < n; i++)
        if (strpbrk(words[i], "\n\r"))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "'%s' has a line feed", words[i]);
    FILE *out = open_memstream(text, &bytes);
    if (!out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (system == INSTALL_SYSTEMD)
        write_unit(out, words, n);
    else
        write_agent(out, words, n);
    return fclose(out) == 0 ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
}

kakeya_status install_write(install_system system, const char *const *words, size_t n, char **path,
                            kakeya_error *error) {
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char *folder = NULL, *text = NULL;
    bool xdg = system == INSTALL_SYSTEMD && base && *base == '/';
    *path = NULL;
    if (!xdg && (!home || *home != '/')) return error_set(error, KAKEYA_INVALID_ARGUMENT, "HOME is not set");
    if (asprintf(&folder, "%s/%s", xdg ? base : home,
                 system == INSTALL_LAUNCHD ? "Library/LaunchAgents"
                 : xdg                     ? "systemd/user"
                                           : ".config/systemd/user") < 0)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    const char *name = system == INSTALL_SYSTEMD ? unit_name : agent_name;
    kakeya_status status = install_text(system, words, n, &text, error);
    if (status == KAKEYA_OK) status = folder_make(folder, error);
    if (status == KAKEYA_OK) status = folder_write(folder, name, text, strlen(text), error);
    if (status == KAKEYA_OK) *path = path_join(folder, name);
    free(text);
    free(folder);
    return status;
}

const char *install_next_steps(install_system system) {
    return system == INSTALL_SYSTEMD ? "systemctl --user daemon-reload && systemctl --user enable --now kakeya-remote\n"
                                       "loginctl enable-linger   # so that it runs without a login, too"
                                     : "launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/kakeya.remote.plist";
}
