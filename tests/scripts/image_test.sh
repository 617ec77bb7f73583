#!/usr/bin/env bash
# An image of scripts/package has the bundle and nothing else, its nodes run as it says, and the manifests of
# scripts/containers fit it. Usage: image_test.sh PROGRAM
set -uo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../scripts" && pwd -P)
program=$1
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

run() { "$@" >"$work/out" 2>"$work/err" </dev/null; }
says() { grep -qE -e "$1" "$work/out" "$work/err"; }

version=$(sed -n 's/^project(strata VERSION \([0-9.]*\).*/\1/p' "$scripts/../CMakeLists.txt")
case $(uname -m) in
  x86_64) cpu=x86_64 platform=amd64 other=aarch64 ;;
  *) cpu=aarch64 platform=arm64 other=x86_64 ;;
esac
bundle=$work/bundles/strata-$version-linux-
run env STRATA_INSIDE=1 "$scripts/package" image --folder "$work"
expect "without a bundle it says how to make one" says "scripts/package bundle"
run env STRATA_INSIDE=1 "$scripts/package" bundle --program "$program" --folder "$bundle$cpu"
# As an archive, as another machine may have made it, with an empty program.
mkdir -p "$work/strata-$version-linux-$other/bin"
touch "$work/strata-$version-linux-$other/bin/strata"
tar -C "$work" -cJf "$bundle$other.tar.xz" "strata-$version-linux-$other"
run env STRATA_INSIDE=1 "$scripts/package" image --folder "$work/bundles"
image=$work/bundles/strata-$version-image.tar
expect "an image is made" test -s "$image"
[[ $failed == 0 ]] || finish
sha256sum "$image" >"$work/sum"
run env STRATA_INSIDE=1 "$scripts/package" image --folder "$work/bundles"
expect "the same bundles give the same image" sha256sum --quiet -c "$work/sum"

# --- what is in it ------------------------------------------------------------------------------------

mkdir "$work/image" "$work/root"
tar -C "$work/image" -xf "$image"
# By the archive's index to the image of this processor: its layer, unpacked, and its configuration.
config=$(
  cd "$work/image" && python3 - "$work/layer" "$platform" <<'PYTHON'
import hashlib, json, shutil, sys

def blob(descriptor):
    path = "blobs/" + descriptor["digest"].replace(":", "/")
    assert hashlib.sha256(open(path, "rb").read()).hexdigest() == descriptor["digest"][7:], path
    return path

def read(descriptor):
    return json.load(open(blob(descriptor)))

named = json.load(open("index.json"))["manifests"][0]
images = read(named)["manifests"]
manifest = read(next(image for image in images if image["platform"]["architecture"] == sys.argv[2]))
shutil.copy(blob(manifest["layers"][0]), sys.argv[1])
config = read(manifest["config"])["config"]
print("name", named["annotations"]["org.opencontainers.image.ref.name"])
print("platforms", *(f"{image['platform']['os']}/{image['platform']['architecture']}" for image in images))
print("layers", len(manifest["layers"]))
print("user", config["User"])
print("entrypoint", *config["Entrypoint"])
print("command", *config["Cmd"])
print("volumes", *config["Volumes"])
print("ports", *sorted(config["ExposedPorts"]))
print("environment", *sorted(config["Env"]))
PYTHON
)
echo "$config" >"$work/out"
expect "its name has the version" says "^name localhost/strata:$version$"
expect "it is for two processors" says "^platforms linux/amd64 linux/arm64$"
expect "it has one layer" says "^layers 1$"
expect "it runs without root" says "^user 65532:65532$"
expect "it starts a node, for others" says "^command node --listen \[::\]:7400 --http \[::\]:7080$"
expect "it names its ports" says "^ports 7080/tcp 7400/tcp$"
expect "what it keeps is in a volume" says "^volumes /var/lib/strata$"
tar -C "$work/root" -xpf "$work/layer"
run find "$work/root" -mindepth 1 -maxdepth 3 ! -path "$work/root/opt/strata/*" -printf '%m %U:%G %P\n'
sort -k 3 "$work/out" >"$work/names"
diff "$work/names" - >"$work/out" <<'END'
755 0:0 etc
644 0:0 etc/group
644 0:0 etc/nsswitch.conf
644 0:0 etc/passwd
755 0:0 opt
755 0:0 opt/strata
1777 0:0 tmp
755 0:0 var
755 0:0 var/lib
700 65532:65532 var/lib/strata
END
expect "besides the bundle there is little in it, and no shell" test ! -s "$work/out"
run diff -r "$bundle$cpu" "$work/root/opt/strata"
expect "the bundle is there, unchanged" test ! -s "$work/out"
run find "$work/root" -perm /6000
expect "no program gives rights" test ! -s "$work/out"

# --- a node of it, as Kubernetes starts it: a read-only root, no rights, a key from a file of root's -------

environment=$(sed -n 's/^environment //p' <<<"$config")
command=$(sed -n 's/^command //p' <<<"$config")
user=$(sed -n 's/^user //p' <<<"$config")
mkdir -p "$work/root"/{proc,dev,run/secrets/strata}
# A key that only its group may read, by a link, as Kubernetes mounts it.
"$program" key new --data-dir "$work/new" 2>"$work/err"
install -m 0440 -g "${user#*:}" "$work/new/cluster_key" "$work/root/run/secrets/strata/real"
ln -s real "$work/root/run/secrets/strata/cluster_key"
# in_container SCRIPT: a shell beside the image, in namespaces with a loopback interface and no more; `container`
# runs the image's program as its configuration says.
in_container() {
  unshare --mount --net --pid --fork --kill-child bash -c '
    root=$1 user=$2 environment=$3
    ip link set lo up
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; mount -t tmpfs tmpfs "$root/tmp"
    mount -t tmpfs -o "mode=2770,uid=0,gid=${user#*:}" tmpfs "$root/var/lib/strata" # as fsGroup makes it
    container() { exec setpriv --no-new-privs env -i $environment /usr/sbin/chroot --userspec="$user" "$root" /opt/strata/bin/strata "$@"; }
    '"$1" in_container "$work/root" "$user" "$environment"
}
if [[ $(id -u) == 0 ]] && unshare --mount --net true 2>/dev/null; then
  # shellcheck disable=SC2016
  run in_container '
    container '"$command"' --no-mdns --key-from /run/secrets/strata/cluster_key >"$root.ready" &
    for _ in $(seq 600); do [[ ! -s $root.ready ]] || break; sleep 0.05; done
    curl -s --fail --retry 30 --retry-delay 1 http://127.0.0.1:7080/health; echo # 503 at first
    curl -s -o /dev/null -w "models %{http_code}\n" http://127.0.0.1:7080/v1/models
    (container status); echo "status $?"
    (container key show)
    (container drain); echo "drain $?"
    kill %1; wait %1; echo "end $?"'
  expect "its node is well, and says so without a token" says '^\{"status":"ok"\}$'
  expect "without a token it says nothing more" says '^models 401$'
  expect "a health check of its own program passes" says '^status 0$'
  expect "it has the key that was mounted" says "^$(cat "$work/new/cluster_key")$"
  expect "it is drained without being named" says '^drain 0$'
  expect "and ends in order" says '^end 0$'
else
  echo "skipped: a node of the image: namespaces are not allowed here"
fi

# --- what starts it ---------------------------------------------------------------------------------------

python3 - "$scripts/containers" "$config" >"$work/out" 2>"$work/err" <<'PYTHON'
import sys, yaml

folder, told = sys.argv[1], dict(line.split(" ", 1) for line in sys.argv[2].splitlines())
ports = {int(port.split("/")[0]) for port in told["ports"].split()}
program, data, command = told["entrypoint"], told["volumes"], told["command"].split()

compose = yaml.safe_load(open(folder + "/compose.yaml"))
default = compose["services"]["node-1"]["image"].replace("${STRATA_VERSION:-", "").replace("}", "")
assert default == told["name"], default
own = set()
for name, node in compose["services"].items():
    assert node["command"][: len(command)] == command, name
    assert node["read_only"] and node["cap_drop"] == ["ALL"] and node["healthcheck"]["test"][1] == program, name
    volumes = [volume.rsplit(":", 2) if volume.endswith(":ro") else volume.split(":") for volume in node["volumes"]]
    own.update(volume[0] for volume in volumes if volume[1] == data)
    for volume in volumes:
        assert volume[0].startswith("$") or volume[0] in compose["volumes"], volume
    if "--key-from" in node["command"]:
        key = node["command"][node["command"].index("--key-from") + 1]
        assert key in [volume[1] + "/cluster_key" for volume in volumes if volume[0] in own], key
        peer, port = node["command"][node["command"].index("--peer") + 1].split(":")
        assert peer in node["networks"]["default"]["aliases"] and int(port) in ports
    for port in node.get("ports", []):
        assert int(port.split(":")[-1]) in ports and port.startswith("127.0.0.1:"), port
assert len(own) == len(compose["services"]), "nodes share a data dir"
print("compose fits")

documents = {}
for document in yaml.safe_load_all(open(folder + "/kubernetes.yaml")):
    documents[document["kind"], document["metadata"]["name"]] = document
nodes = documents["StatefulSet", "strata"]["spec"]
pod = nodes["template"]["spec"]
(node,) = pod["containers"]
assert node["image"] == told["name"], node["image"]
assert "command" not in node and node["args"][: len(command)] == command
named = {port["name"]: port["containerPort"] for port in node["ports"]}
assert set(named.values()) == ports
labels = nodes["template"]["metadata"]["labels"]
assert nodes["selector"]["matchLabels"] == labels
for (kind, name), document in documents.items():
    if kind == "Service":
        assert labels.items() <= document["spec"]["selector"].items(), name
        for port in document["spec"]["ports"]:
            assert port["targetPort"] in named and port["port"] == named[port["targetPort"]], name
peer, port = node["args"][node["args"].index("--peer") + 1].split(":")
service = documents["Service", peer]["spec"]
assert nodes["serviceName"] == peer and service["clusterIP"] == "None" and int(port) == named["node"]
for probe in "readinessProbe", "livenessProbe":
    assert node[probe]["httpGet"] == {"path": "/health", "port": "http"}, probe
assert node["lifecycle"]["preStop"]["exec"]["command"] == [program, "drain"]
user, group = map(int, told["user"].split(":"))
security = pod["securityContext"]
assert security["runAsNonRoot"] and security["runAsUser"] == user and security["runAsGroup"] == security["fsGroup"] == group
assert node["securityContext"]["readOnlyRootFilesystem"] and not node["securityContext"]["allowPrivilegeEscalation"]
mounts = {mount["mountPath"]: mount["name"] for mount in node["volumeMounts"]}
volumes = {volume["name"]: volume for volume in pod["volumes"]}
claims = {claim["metadata"]["name"] for claim in nodes["volumeClaimTemplates"]}
assert mounts[data] in claims and "emptyDir" in volumes[mounts["/tmp"]]
place, key = node["args"][node["args"].index("--key-from") + 1].rsplit("/", 1)
assert "secret" in volumes[mounts[place]] and key == "cluster_key"
print("kubernetes fits")
PYTHON
expect "compose.yaml fits the image" says "^compose fits$"
expect "kubernetes.yaml fits the image" says "^kubernetes fits$"

finish
