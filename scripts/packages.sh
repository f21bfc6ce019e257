# Sourced by the scripts that set a Debian machine up: installs what is missing, and nothing else.

need() { # need COMMAND PACKAGE…: the packages, unless the command is there
    local command=$1
    shift
    command -v "$command" >/dev/null 2>&1 || missing+=("$@")
}

install_missing() {
    [ ${#missing[@]} -eq 0 ] && return
    local sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    echo "installing: ${missing[*]}" >&2
    "${sudo[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >&2
}

# The client library of the feature `mysql`.
need_mysql_client() {
    need pkg-config pkg-config
    [ -e /usr/include/mariadb/mysql.h ] || missing+=(libmariadb-dev)
}

missing=()
need cc gcc libc6-dev
need make make
need perl perl
