#!/bin/bash
# Installs, runs, removes and purges a package of relayedge in a Debian root, and
# says in its last line how far it went. Nothing of this machine is changed: all
# mounts and sockets are in namespaces that end with this script.
#
#   deploy/check-deb.sh relayedge_VERSION_ARCH.deb
#
# SUITE (bookworm) and MIRROR choose the root that debootstrap makes. Without
# debootstrap, or its mirror, it is this machine's own system, if that is a
# Debian, under an overlay; without root the package is unpacked and run.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin
deb=$(realpath "${1:?deploy/check-deb.sh FILE.deb}")
: "${SUITE:=bookworm}" "${MIRROR:=http://deb.debian.org/debian}"
patience=${PATIENCE:-120} # seconds that anything may take that should take one

fail() {
	echo "check-deb: FAILED: $*" >&2
	exit 1
}

# eventually COMMAND… runs it until it succeeds.
eventually() {
	local end=$((SECONDS + patience))
	until "$@" >"$work/said" 2>&1; do
		((SECONDS < end)) || { cat "$work/said" "$work"/*.log >&2; fail "$*"; }
		sleep 0.2
	done
}

# The inner part runs in namespaces of its own.
if [[ ${CHECK_DEB_INNER:-} != 1 ]]; then
	work=$(mktemp -d /tmp/check-deb.XXXXXX)
	trap 'rm -rf --one-file-system "$work"' EXIT
	if ((EUID == 0)) && unshare --mount --net true 2>/dev/null && command -v ip >/dev/null; then
		root=$work/root
		mkdir "$root"
		kind=
		if command -v debootstrap >/dev/null; then
			# It fetches, so it has this machine's network; not its mounts. In memory, where
			# nothing is slow for being synced; what remains is one file.
			if unshare --mount sh -euc '
				mount --make-rprivate /
				mount -t tmpfs -o size=1g none "$2"
				debootstrap --variant=minbase "$1" "$2" "$3"
				rm -rf "$2/var/cache/apt/archives"
				tar -C "$2" --one-file-system -cf "$4" .
			' sh "$SUITE" "$root" "$MIRROR" "$work/root.tar" >"$work/debootstrap.log" 2>&1; then
				kind="a clean Debian $SUITE"
			else
				tail -3 "$work/debootstrap.log" >&2
			fi
		fi
		CHECK_DEB_INNER=1 work=$work root=$root kind=$kind unshare --mount --net --pid --fork --kill-child bash "$(realpath "$0")" "$deb"
		exit
	fi
	# Nothing but the files: they are run where they are unpacked.
	dpkg-deb -x "$deb" "$work/files"
	"$work/files/usr/bin/relayedge" check -c "$work/files/etc/relayedge/config.yaml"
	"$work/files/usr/bin/relaycore" version
	echo "check-deb: unpacked and asked for its version; not installed, which takes root, unshare and ip"
	exit
fi

mount --make-rprivate /
ip link set lo up
if [[ -z $kind ]]; then
	[[ -e /etc/debian_version ]] || fail "no debootstrap, and this machine is no Debian"
	mkdir "$work/layer"
	mount -t tmpfs none "$work/layer"
	mkdir "$work/layer/"{upper,work}
	mount -t overlay overlay -o "lowerdir=/,upperdir=$work/layer/upper,workdir=$work/layer/work" "$root"
	kind="this Debian $(cat /etc/debian_version), under an overlay, for want of debootstrap or its mirror"
else
	mount -t tmpfs -o size=1g none "$root"
	tar -C "$root" -xf "$work/root.tar"
	rm "$work/root.tar"
fi
# systemd makes it for any unit with DynamicUser=, and it is nobody's to take away.
mkdir -p -m 700 "$root/var/lib/private"

# What a package may leave behind is what dpkg itself writes. A system that lives
# under an overlay changes elsewhere, at the same time.
files() { (cd "$root" && find etc usr opt srv var -xdev \( -path var/lib/dpkg -o -path var/cache -o -path var/log -o -path var/tmp \) -prune -o -print | sort); }
files >"$work/before"
mount -t proc proc "$root/proc"
mount -t tmpfs none "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/urandom" c 1 9
mount -t tmpfs none "$root/run"
mount -t tmpfs none "$root/tmp"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C "$@"; }

cp "$deb" "$root/tmp/relayedge.deb"
inside dpkg -i /tmp/relayedge.deb
[[ $(inside dpkg-query -W -f '${db:Status-Status} ${Conffiles}' relayedge) == installed*" /etc/relayedge/config.yaml "* ]] || fail "not installed, or its policy is no conffile"
inside dpkg --verify relayedge
for page in relayedge relaycore; do
	zcat "$root/usr/share/man/man1/$page.1.gz" | grep -q '^\.SH NAME' || fail "no manual page $page"
done
inside relayedge check -c /etc/relayedge/config.yaml

# serve PROGRAM runs the ExecStart= of its unit as the unit has it, as far as that
# goes without systemd: a user that nobody else is, the one capability, a root that
# is read only, folders of its own for state and sockets.
serve() {
	local program=$1 user=61184 caps
	caps=-all$(grep -q '^AmbientCapabilities=CAP_NET_BIND_SERVICE$' "$root/lib/systemd/system/$program.service" && echo ,+net_bind_service || true)
	local start
	start=$(sed -n 's/^ExecStart=//p' "$root/lib/systemd/system/$program.service")
	mkdir -p "$root/run/$program" "$root/var/lib/private/$program"
	chown $user:$user "$root/run/$program" "$root/var/lib/private/$program"
	chmod 700 "$root/var/lib/private/$program"
	[[ -e $root/var/lib/$program ]] || ln -s "private/$program" "$root/var/lib/$program"
	unshare --mount sh -euc '
		root=$1 program=$2 user=$3 caps=$4; shift 4
		mount --bind "$root/var/lib/private/$program" "$root/var/lib/private/$program"
		mount -o remount,bind,ro "$root"
		ulimit -n "$(ulimit -Hn)"; ulimit -c 0; umask 0077
		if touch "$root/etc/x" 2>/dev/null; then echo "the root can be written" >&2; exit 1; fi
		exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs \
			--inh-caps "$caps" --ambient-caps "$caps" --bounding-set "$caps" \
			env -i PATH=/usr/bin:/bin LC_ALL=C "$@"
	' sh "$root" "$program" $user "$caps" $start >"$work/$program.log" 2>&1 &
	pid=$!
}

# ends has what serve has started end as systemd would, with status 0.
ends() {
	kill -TERM "$1"
	wait "$1" || { cat "$work"/*.log >&2; fail "ended with $?"; }
}

# reloads runs the unit's ExecReload=.
reloads() { inside $(sed -n 's/^ExecReload=//p' "$root/lib/systemd/system/$1.service"); }

# 1. As it is shipped.
serve relayedge
eventually inside relaycore try --insecure wss://127.0.0.1:8443/relay
reloads relayedge
ends $pid

# 2. On a port of the system, with the relay as a process of its own.
sed -i 's/127\.0\.0\.1:8443/0.0.0.0:443/; s/in_process: true/in_process: false/' "$root/etc/relayedge/config.yaml"
serve relayedge
edge=$pid
serve relaycore
relay=$pid
eventually inside relaycore try --insecure wss://127.0.0.1:443/relay
reloads relayedge
reloads relaycore
# A policy that is refused makes the reload fail, and the edge serves on.
sed -i 's/^listeners:/listenres:/' "$root/etc/relayedge/config.yaml"
! reloads relayedge 2>"$work/refusal" || fail "a broken policy was taken"
grep -q 'config.yaml:.*listenres' "$work/refusal" || fail "the reload does not say why it was refused: $(cat "$work/refusal")"
sed -i 's/^listenres:/listeners:/' "$root/etc/relayedge/config.yaml"
inside relaycore try --insecure wss://127.0.0.1:443/relay >/dev/null
ends $relay
ends $edge

# 3. A package that comes again leaves what the operator wrote.
inside dpkg -i /tmp/relayedge.deb
grep -q 0.0.0.0:443 "$root/etc/relayedge/config.yaml" || fail "the operator's policy is gone"

inside dpkg -r relayedge
[[ ! -e $root/usr/bin/relayedge && ! -e $root/lib/systemd/system/relayedge.service ]] || fail "removed, and its files are there"
[[ -e $root/etc/relayedge/config.yaml && -e $root/var/lib/private/relayedge ]] || fail "removed, and its policy or its state is gone"
inside dpkg -P relayedge
[[ -z $(inside dpkg-query -W -f '${db:Status-Status}' relayedge 2>/dev/null) ]] || fail "purged, and dpkg still knows it"
umount "$root/proc" "$root/dev" "$root/run" "$root/tmp"
files >"$work/after"
left=$(comm -13 "$work/before" "$work/after")
[[ -z $left ]] || fail "purged, and these are left: $left"
echo "check-deb: installed, served as its units do but for systemd (TLS on 8443 and 443, relay within and beside, reload, drain), removed and purged in $kind"
