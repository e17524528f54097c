#!/bin/bash
# Builds the Debian package into the folder that is named, reproducibly: the same
# sources, Go and GOARCH give the same bytes, wherever they lie.
#
#   deploy/package.sh OUT
#
# VERSION and SOURCE_DATE_EPOCH come from git where they are not set.
# With FILES_ONLY=1 no package is made of the files, which are in OUT/root.
set -euo pipefail
umask 022
export LC_ALL=C TZ=UTC
out=$(mkdir -p "${1:?is missing; deploy/package.sh OUT takes the folder for the package}" && cd "$1" && pwd)
cd "$(dirname "$0")/.."

git_says() { git -c safe.directory='*' "$@" 2>/dev/null || true; }
if [[ -z ${VERSION:-} ]]; then
	VERSION=$(git_says describe --tags --match 'v[0-9]*' --dirty)
fi
if [[ -z $VERSION ]]; then
	commit=$(git_says rev-parse --short=12 HEAD)
	VERSION=0.0.0${commit:+~git$(git_says log -1 --format=%cd --date=format:%Y%m%d).$commit}
fi
VERSION=${VERSION#v}
if [[ $VERSION != [0-9]* ]]; then
	echo "VERSION=$VERSION: a package's version begins with a digit, as in VERSION=1.2.3" >&2
	exit 1
fi
: "${SOURCE_DATE_EPOCH:=$(git_says log -1 --format=%ct)}"
# Without git there is no better date than one that is always the same.
: "${SOURCE_DATE_EPOCH:=1767225600}"
: "${GOARCH:=$(go env GOARCH)}"
export VERSION SOURCE_DATE_EPOCH GOARCH
# Nothing of this machine's settings goes into the binaries.
export CGO_ENABLED=0 GOOS=linux GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOWORK=off

root=$out/root
rm -rf "$root"
mkdir -p "$root"/{bin,man,completions,doc,units}
flags=(-trimpath -buildvcs=false -ldflags "-s -w -buildid= -X relayedge/cmd/internal/service.version=$VERSION")
go build "${flags[@]}" -o "$root/bin/" ./cmd/relayedge ./cmd/relaycore

# The pages are printed by programs that this machine can run.
own=$root/bin
if [[ $GOARCH != $(go env GOHOSTARCH) || $(go env GOHOSTOS) != linux ]]; then
	own=$root/own
	GOARCH=$(go env GOHOSTARCH) GOOS=$(go env GOHOSTOS) go build "${flags[@]}" -o "$own/" ./cmd/relayedge ./cmd/relaycore
fi
for program in relayedge relaycore; do
	"$own/$program" man | gzip -9n >"$root/man/$program.1.gz"
	for shell in bash zsh fish; do
		"$own/$program" completion "$shell" >"$root/completions/$program.$shell"
	done
done
rm -rf "$root/own"

cp deploy/relayedge.service deploy/relaycore.service "$root/units/"
cp deploy/debian/config.yaml config.example.yaml deploy/relayedge.socket README.md docs/*.md "$root/doc/"
gzip -9n <CHANGELOG.md >"$root/doc/changelog.gz"

# The licence of each module in the binaries goes along, as most of them ask for.
{
	cat deploy/debian/copyright
	sed 's/^$/./; s/^/ /' LICENSE
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/relayedge ./cmd/relaycore | sort -u |
		while read -r path version folder; do
			printf '\n%s %s\n' "$path" "$version"
			find "$folder" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | xargs -r cat | sed 's/\r$//; s/^[[:space:]]*$/./; s/^/ /'
		done
} >"$root/doc/copyright"
cp "$(go env GOROOT)/LICENSE" "$root/doc/go.licence"
{
	printf '\nThe Go standard library\n'
	sed 's/^[[:space:]]*$/./; s/^/ /' "$root/doc/go.licence"
} >>"$root/doc/copyright"
rm "$root/doc/go.licence"

chmod -R u=rwX,go=rX "$root"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

[[ -z ${FILES_ONLY:-} ]] || exit 0

nfpm=$(sed -n 's/^NFPM *= *//p' Makefile)
# nfpm takes the paths of its file from where it runs, and is a program of this machine.
cp deploy/debian/nfpm.yaml deploy/debian/{postinst,prerm,postrm} "$root/"
(
	cd "$root"
	export DEB_ARCH=$GOARCH
	unset GOARCH GOOS
	go run "$nfpm" package -f nfpm.yaml -p deb -t "$out/relayedge_${VERSION}_$DEB_ARCH.deb"
)
rm "$root"/{nfpm.yaml,postinst,prerm,postrm}
