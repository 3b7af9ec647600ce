#!/bin/sh
# Debian's packages, unpacked into a folder. Nothing is installed, no list of the machine is touched.
#
#   debian.sh FOLDER binary PACKAGE ...   them and what they need that is not installed, in FOLDER/root
#   debian.sh FOLDER source PACKAGE       its source tree, FOLDER/PACKAGE-VERSION
#
# Mirrors are those that the machine knows, source packages as well.
set -eu
folder=$1 kind=$2
shift 2
mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/parts" "$folder/root"
folder=$(cd "$folder" && pwd)
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
	test -f "$list" || continue
	name=$(basename "$list")
	sed -e 's/^Types:.*/Types: deb deb-src/' "$list" >"$folder/parts/$name"
	sed -n -e 's/^deb /deb-src /p' "$list" >"$folder/parts/sources-${name%.*}.list"
done
apt() {
	command apt-get -qq -o Debug::NoLocking=1 -o APT::Sandbox::User=root \
		-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$folder/parts" \
		-o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder" \
		-o Dir::Cache::archives="$folder/archives" "$@" >"$folder/log" 2>&1
}
apt update
case $kind in
source) cd "$folder" && apt source "$1" ;;
binary)
	# Those asked for also if they are installed: programs of one MPI must find all of it here.
	apt -y --no-install-recommends --download-only --reinstall install "$@"
	for package in "$folder"/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
	;;
*) echo "debian.sh: binary or source, not $kind" >&2 && exit 2 ;;
esac
