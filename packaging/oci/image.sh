#!/bin/sh
# Makes an OCI image of a package of kakeya and what it depends on, from the packages of the distribution alone: no base image from
# elsewhere, and neither a daemon nor a registry. Needs mmdebstrap, as root or where users may have namespaces of their own.
# usage: packaging/oci/image.sh PACKAGE.deb DIRECTORY [SUITE [MIRROR]]
# If the package of the demo model (kakeya-models-demo) lies beside it, that is installed, too.
# DIRECTORY becomes an OCI layout, which others read: skopeo copy oci:DIRECTORY:latest docker://REGISTRY/kakeya:latest
# DIRECTORY.tar is its root, for who wants no image: see docs/guide/deploy.md.
set -eu

usage="usage: packaging/oci/image.sh PACKAGE.deb DIRECTORY [SUITE [MIRROR]]"
package=$(realpath "${1:?$usage}") layout=${2:?$usage} suite=${3:-bookworm} mirror=${4:-}
models=$(find "$(dirname "$package")" -maxdepth 1 -name 'kakeya-models-demo_*.deb' | head -n 1)
root=$layout.tar blobs=$layout/blobs/sha256
: "${SOURCE_DATE_EPOCH:=$(stat -c %Y "$package")}"
export SOURCE_DATE_EPOCH # the same package and the same packages of the distribution make the same image

command -v mmdebstrap >/dev/null || { echo "packaging/oci/image.sh: mmdebstrap is not installed" >&2; exit 1; }
[ ! -e "$layout" ] || { echo "packaging/oci/image.sh: $layout is there already" >&2; exit 1; }

# The user that the server runs as has a number alone. Lists and caches of the package manager are not for an image.
mmdebstrap --quiet --variant=minbase \
    --customize-hook="copy-in '$package' ${models:+'$models'} /tmp" \
    --customize-hook="chroot \"\$1\" sh -c 'apt-get install -y --no-install-recommends /tmp/*.deb && rm /tmp/*.deb'" \
    --customize-hook="mkdir -p \"\$1/models\" \"\$1/sessions\" && chown 10001:10001 \"\$1/sessions\" && chmod 700 \"\$1/sessions\"" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$root" ${mirror:+"$mirror"}

case $(dpkg-deb --field "$package" Architecture) in
    amd64) architecture=amd64 ;;
    arm64) architecture=arm64 ;;
    *) echo "packaging/oci/image.sh: $package is for neither amd64 nor arm64" >&2; exit 1 ;;
esac
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
mkdir -p "$blobs"

digest() { sha256sum "$1" | cut -d' ' -f1; }
blob() { # file: moves it among the blobs, prints "digest size"
    name=$(digest "$1")
    size=$(stat -c %s "$1")
    mv "$1" "$blobs/$name"
    echo "$name $size"
}
descriptor() { # media type, digest, size, more members
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s%s}' "$1" "$2" "$3" "${4:-}"
}

gzip -n -c "$root" >"$layout/layer"
read -r layer layer_size <<EOF
$(blob "$layout/layer")
EOF
printf '{"created":"%s","architecture":"%s","os":"linux","config":{"User":"10001:10001",%s,%s},%s}' \
    "$created" "$architecture" '"Entrypoint":["/usr/bin/kakeya"],"Cmd":["serve"]' \
    '"Env":["PATH=/usr/bin:/bin","HF_HOME=/models"],"ExposedPorts":{"8080/tcp":{}},"StopSignal":"SIGTERM","WorkingDir":"/"' \
    "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$(digest "$root")\"]}" >"$layout/config"
read -r config config_size <<EOF
$(blob "$layout/config")
EOF
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
    "$(descriptor config.v1+json "$config" "$config_size")" \
    "$(descriptor layer.v1.tar+gzip "$layer" "$layer_size")" >"$layout/manifest"
read -r manifest manifest_size <<EOF
$(blob "$layout/manifest")
EOF
named=',"annotations":{"org.opencontainers.image.ref.name":"latest"}'
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' \
    "$(descriptor manifest.v1+json "$manifest" "$manifest_size" "$named")" >"$layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
echo "$layout"
