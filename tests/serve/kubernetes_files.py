"""packaging/kubernetes: every manifest has the shape of its kind, names that match, options that the server has; in whole runs
packaging/oci/image.sh makes an image whose root runs the server."""

import glob
import hashlib
import os
import re
import shutil
import tarfile
import tempfile

import yaml
from kubernetes import client

from harness import *  # noqa: F403

FOLDER = "packaging/kubernetes"
# What is no kind of Kubernetes itself: of the Gateway API's inference extension and of llm-d. A list: of such; <>: any text; names with ?
# may be absent.
CUSTOM = {
    "InferencePool": {
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "<>"},
        "spec": {"selector": {"matchLabels": "<labels>"}, "targetPorts": [{"number": 1}],
                 "endpointPickerRef": {"name": "<>", "port": {"number": 1}, "failureMode": "<>"}}},
    "EndpointPickerConfig": {
        "apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": [{"type": "<>", "parameters?": "<plugin>"}],
        "dataLayer": {"sources": [{"pluginRef": "<>", "extractors": [{"pluginRef": "<>"}]}]},
        "schedulingProfiles": [{"name": "<>", "plugins": [{"pluginRef": "<>", "weight?": 1}]}]},
}


def load(name):
    with open(os.path.join(FOLDER, name)) as f:
        return [d for d in yaml.safe_load_all(f) if d]


def documents():
    return [(os.path.basename(path), d) for path in sorted(glob.glob(f"{FOLDER}/*.yaml")) for d in load(os.path.basename(path))]


def check(value, kind, where):
    """The value of a manifest against a type of the client's models."""
    many = re.fullmatch(r"[Ll]ist\[(.*)\]|[Dd]ict[\[(]str, (.*)[\])]", kind)
    if many and many[1]:
        holds(isinstance(value, list), f"{where} is no list")
        for i, item in enumerate(value):
            check(item, many[1], f"{where}[{i}]")
    elif many:
        holds(isinstance(value, dict), f"{where} is no map")
        for name, item in value.items():
            check(item, many[2], f"{where}.{name}")
    elif hasattr(client, kind):
        model = getattr(client, kind)
        names = {json_name: attribute for attribute, json_name in model.attribute_map.items()}
        holds(isinstance(value, dict), f"{where} is no {kind}")
        for name, item in value.items():
            holds(name in names, f"{where}: {kind} has no {name}")
            check(item, model.openapi_types[names[name]], f"{where}.{name}")
        try:
            model(**{names[name]: item for name, item in value.items()})  # says what is required
        except ValueError as e:
            raise AssertionError(f"{where}: {e}") from e
    else:
        types = {"str": str, "int": int, "float": (int, float), "bool": bool, "object": object, "datetime": str}
        holds(isinstance(value, types[kind]) and (kind != "int" or value is not True), f"{where}: {value!r} is no {kind}")


def same_shape(value, shape, where):
    if isinstance(shape, dict):
        holds(isinstance(value, dict), where)
        for name in value:
            holds(name in shape or f"{name}?" in shape, f"{where}.{name}")
        for name, inner in shape.items():
            if name.rstrip("?") in value:
                same_shape(value[name.rstrip("?")], inner, f"{where}.{name}")
            else:
                holds(name.endswith("?"), f"{where}: there is no {name}")
    elif isinstance(shape, list):
        holds(isinstance(value, list) and value, where)
        for i, item in enumerate(value):
            same_shape(item, shape[0], f"{where}[{i}]")
    elif shape in ("<labels>", "<plugin>"):
        holds(isinstance(value, dict) and value, where)
    elif shape == "<>":
        holds(isinstance(value, str) and value, where)
    elif isinstance(shape, str):
        equal(value, shape, where)
    else:
        holds(isinstance(value, int), where)


@test("manifests: every field is one of its kind, and what is required is there")
def _():
    kinds = set()
    for name, d in documents():
        if name.endswith("-patch.yaml"):
            continue
        kinds.add(d["kind"])
        if d["kind"] in CUSTOM:
            same_shape(d, CUSTOM[d["kind"]], name)
            continue
        group = d["apiVersion"].split("/")
        model = group[-1].capitalize() + d["kind"]
        check(d, model, f"{name} {d['kind']}")
    equal(kinds, {"Deployment", "Service", "PersistentVolumeClaim", "PodDisruptionBudget", "InferencePool", "EndpointPickerConfig"})
    for wrong in ({"spec": {"replica": 2}}, {"spec": {"template": {"spec": {}}}}, {"metadata": {"labels": {"a": 1}}}):
        try:
            check({**load("replica.yaml")[2], **wrong}, "V1Deployment", "")
        except AssertionError:
            continue
        raise AssertionError(f"{wrong} is found")


def deployments():
    return [d for _, d in documents() if d.get("kind") == "Deployment"]


@test("manifests: selectors, ports, claims and names fit together")
def _():
    pods = [d["spec"]["template"] for d in deployments()]
    pool = load("pool.yaml")[0]["spec"]
    services = [d for _, d in documents() if d.get("kind") == "Service"]
    claims = {d["metadata"]["name"] for _, d in documents() if d.get("kind") == "PersistentVolumeClaim"}
    for d in deployments():
        labels, spec = d["spec"]["template"]["metadata"]["labels"], d["spec"]["template"]["spec"]
        holds(d["spec"]["selector"]["matchLabels"].items() <= labels.items(), d["metadata"]["name"])
        holds(pool["selector"]["matchLabels"].items() <= labels.items(), "the pool selects it")
        containers = spec["containers"] + spec.get("initContainers", [])
        ports = {p["containerPort"] for c in containers for p in c["ports"]}
        holds({p["number"] for p in pool["targetPorts"]} <= ports, f"{ports}")
        volumes = {v["name"] for v in spec["volumes"]}
        holds({v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v} <= claims, claims)
        server = spec["containers"][0]
        equal({m["name"] for m in server["volumeMounts"]}, volumes)
        options = dict(a.lstrip("-").split("=", 1) for a in server["args"] if "=" in a)
        equal(int(options["port"]), server["ports"][0]["containerPort"])
        holds(spec["terminationGracePeriodSeconds"] >= int(options["drain"]) + int(options["save-seconds"]) + 10, "a graceful end")
        mounts = [m["mountPath"] for m in server["volumeMounts"]]
        holds(options["session-dir"] in mounts and os.path.dirname(options["model"]) in mounts, mounts)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            equal(server[probe]["httpGet"]["port"], server["ports"][0]["name"], probe)
    for s in services:
        holds(any(s["spec"]["selector"].items() <= p["metadata"]["labels"].items() for p in pods), s["metadata"]["name"])
        names = {p["name"] for d in pods for c in d["spec"]["containers"] for p in c["ports"]}
        holds({p["targetPort"] for p in s["spec"]["ports"]} <= names, names)
    patch = load("prefill-patch.yaml")[0]["spec"]["template"]["metadata"]["labels"]
    holds(patch.keys() <= pods[0]["metadata"]["labels"].keys(), "the patch changes a label that is there")
    for name in ("epp-kakeya.yaml", "epp-vllm.yaml", "epp-prefill-decode.yaml"):
        config = load(name)[0]
        plugins = {p.get("name", p["type"]) for p in config["plugins"]}
        named = {p["pluginRef"] for profile in config["schedulingProfiles"] for p in profile["plugins"]}
        named |= {s["pluginRef"] for s in config["dataLayer"]["sources"]} | {
            e["pluginRef"] for s in config["dataLayer"]["sources"] for e in s["extractors"]}
        holds(named <= plugins, f"{name}: {named - plugins}")


@test("manifests: a server takes the options, has the paths of the probes and the metrics that the endpoint picker reads")
def _():
    for d in deployments():
        server = d["spec"]["template"]["spec"]["containers"][0]
        options = []
        for a in server["args"][1:]:
            if a.startswith("--model="):
                continue
            where = {"--session-dir": tempfile.mkdtemp(), "--host": "127.0.0.1", "--port": "0"}.get(a.split("=")[0])
            options.append(f"{a.split('=')[0]}={where}" if where else a)
        options = [part for a in options for part in a.split("=", 1) if not a.startswith("--port=")]
        options[options.index("--context") + 1] = "8192"  # which is the demo's
        s = Server(*options)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            equal(s.get(server[probe]["httpGet"]["path"]).status, 200, probe)
        text = s.get("/metrics").body.decode()
        for config in ("epp-kakeya.yaml", "epp-prefill-decode.yaml"):
            engines = [e for p in load(config)[0]["plugins"] for e in p.get("parameters", {}).get("engineConfigs", [])]
            equal([e["name"] for e in engines], [d["spec"]["template"]["metadata"]["labels"]["llm-d.ai/engine-type"]], config)
            for key, name in engines[0].items():
                holds(key == "name" or f"\n{name}{{" in text, f"{key}: {name}")
        for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "cache_config_info"):
            holds(f"\nvllm:{name}{{" in text, name)
        equal(s.stop(), 0)
        shutil.rmtree(options[options.index("--session-dir") + 1], ignore_errors=True)


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@test("the image: its parts are what their names say, and the server runs in its root")
def _():
    if not WHOLE:
        raise Skip("in whole runs alone (WHOLE_SWEEPS=1)")
    for tool in ("mmdebstrap", "unshare", "dpkg-deb"):
        if not shutil.which(tool):
            raise Skip(f"there is no {tool}")
    if subprocess.run(["unshare", "--mount", "--root=/", "true"], capture_output=True).returncode:
        raise Skip("unshare does not work here")
    folder = tempfile.mkdtemp(prefix="kakeya-image-")
    try:
        made = subprocess.run(["sh", "tools/package.sh", BUILD, os.path.join(folder, "packages")], capture_output=True, text=True)
        equal(made.returncode, 0, made.stderr)
        package = next(path for path in made.stdout.split() if os.path.basename(path).startswith("kakeya_"))
        image = os.path.join(folder, "image")
        made = subprocess.run(["sh", "packaging/oci/image.sh", package, image], capture_output=True, text=True)
        equal(made.returncode, 0, made.stderr[-500:])
        blobs = os.path.join(image, "blobs", "sha256")
        for name in os.listdir(blobs):
            equal(sha256(os.path.join(blobs, name)), name)

        def blob(descriptor):
            path = os.path.join(blobs, descriptor["digest"].split(":")[1])
            equal(os.path.getsize(path), descriptor["size"])
            return path

        with open(os.path.join(image, "index.json")) as f:
            manifest = json.load(open(blob(json.load(f)["manifests"][0])))
        config = json.load(open(blob(manifest["config"])))
        equal(config["rootfs"]["diff_ids"], [f"sha256:{sha256(image + '.tar')}"])
        root = os.path.join(folder, "root")
        with tarfile.open(blob(manifest["layers"][0])) as layer:
            layer.extractall(root, filter="fully_trusted")
        entry = config["config"]["Entrypoint"]
        # no /proc is mounted there, by which the program finds the model beside it
        s = Server(wrapper=("unshare", "--mount", f"--root={root}", "--wd=/"), program=entry[0], model="/usr/share/kakeya/models/demo")
        reply = s.post("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4})
        equal(reply.status, 200, reply.body[:300])
        equal(s.stop(), 0)
    finally:
        Server.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


run_tests()
