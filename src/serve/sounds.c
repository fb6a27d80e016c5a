#include "serve/sounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "media/sound_decode.h"
#include "serve/media_bytes.h"
#include "serve/media_child.h"

sounds_limited sounds_limits(const serve_settings *s) {
    return (sounds_limited){
        .bytes = s->audio_bytes ? s->audio_bytes : (size_t)20 << 20,
        .seconds = s->audio_seconds ? s->audio_seconds : SOUND_MAX_SECONDS,
        .count = s->audio_count ? s->audio_count : 16,
    };
}

bool sounds_are_read(const server_context *s) { return kakeya_engine_sound_token(s->engine) >= 0; }

bool sounds_is_part(const cJSON *part) {
    const char *type = body_string(part, "type");
    return type && (strcmp(type, "input_audio") == 0 || strcmp(type, "audio") == 0);
}

bool sounds_refuse(const call *c, const char *what, const char *place, api_error *error) {
    kakeya_error why = {0};
    int tokens;
    (void)kakeya_engine_sound_tokens(c->server->engine, NULL, &tokens, &why);
    return api_fail(error, 400, "unsupported_content", place, "%s; %s", what, why.message);
}

bool sounds_read_file(call *c, const void *data, size_t bytes, const char *place, kakeya_media *out, api_error *error) {
    const sounds_limited most = sounds_limits(c->server->settings);
    *out = (kakeya_media){0};
    if (bytes > most.bytes)
        return api_fail(error, 400, "sound_too_large", place, "%s: the sound has more than %zu bytes (--audio-bytes)",
                        place, most.bytes);
    const char *program = c->server->settings->media_program;
    kakeya_error why = {0};
    sound_info info;
    sound_samples samples;
    kakeya_sound *heard = NULL;
    kakeya_status status =
        program ? media_child_read_sound(program, place, data, bytes, most.seconds, &info, &samples, &why)
                : sound_decode(place, data, bytes, most.seconds, &info, &samples, &why);
    if (status == KAKEYA_OK) {
        const kakeya_sound_facts facts = {
            .format = sound_format_name(info.format), .rate = info.rate, .channels = info.channels};
        status = kakeya_sound_of_samples(&facts, samples.sample, samples.n, &heard, &why);
        sound_free(&samples);
    }
    out->sound = heard;
    if (status == KAKEYA_OK) return true;
    return api_fail_library(error, status == KAKEYA_INVALID_ARGUMENT ? "sound_too_large" : "audio_parse_error", place,
                            &why);
}

/* The name of a format is checked, but the bytes decide which of the three it is. */
static bool check_format(const cJSON *audio, const char *place, api_error *error) {
    const cJSON *format = body_member(audio, "format");
    if (!format) return true;
    for (int i = 0; cJSON_IsString(format) && i < SOUND_FORMATS; i++)
        if (strcasecmp(format->valuestring, sound_format_name((sound_format)i)) == 0) return true;
    char param[160], shown[80];
    fields_show(format, shown);
    snprintf(param, sizeof param, "%.120s.input_audio.format", place);
    return api_fail(error, 400, "invalid_value", param, "%s: %s is not wav, mp3 or flac", param, shown);
}

bool sounds_read_part(call *c, const cJSON *part, const char *place, kakeya_media *out, api_error *error) {
    const cJSON *audio = body_member(part, "input_audio");
    const media_limit limit = {"sound", "--audio-bytes", sounds_limits(c->server->settings).bytes};
    const char *text = body_string(audio, "data");
    *out = (kakeya_media){0};
    if (!text)
        return api_fail(error, 400, "invalid_type", place,
                        "%s: there is no input_audio of the form {\"data\": base64, \"format\": \"wav\"}", place);
    if (!check_format(audio, place, error)) return false;
    static const char mark[] = ";base64,";
    const char *behind = strncasecmp(text, "data:", 5) == 0 ? strstr(text, mark) : NULL; /* some clients send a URI */
    if (behind) text = behind + sizeof mark - 1;
    size_t bytes;
    unsigned char *data;
    if (!media_read_base64(text, strlen(text), &limit, place, &data, &bytes, error)) return false;
    const bool read = sounds_read_file(c, data, bytes, place, out, error);
    free(data);
    return read;
}
