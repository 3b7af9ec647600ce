#!/bin/sh
# Unpack Debian packages into a folder. Nothing is installed, and the system's package lists stay unchanged.
#
#   debian.sh FOLDER binary PACKAGE ...   unpack them and missing dependencies into FOLDER/root
#   debian.sh FOLDER source PACKAGE       unpack its source tree to FOLDER/PACKAGE-VERSION
#
# Uses the mirrors configured on the machine, also for source packages.
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
	# Unpack the named packages even if they are installed: programs of an MPI must find all of it here.
	apt -y --no-install-recommends --download-only --reinstall install "$@"
	for package in "$folder"/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
	# Dependencies that are installed are not unpacked. Links to their files must lead to the system's.
	find "$folder/root" -xtype l | while read -r link; do
		file=$(readlink -m "$link")
		file=${file#"$folder/root"}
		if test -e "$file"; then ln -sf "$file" "$link"; fi
	done
	;;
*) echo "debian.sh: binary or source, not $kind" >&2 && exit 2 ;;
esac
