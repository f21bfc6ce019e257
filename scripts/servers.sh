# Sourced after packages.sh: a private PostgreSQL and a private MariaDB on free loopback ports, in a temporary
# folder that goes when the script ends. Other servers on the machine are left alone.

newest_postgres() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1; }

need_servers() {
    [ -n "$(newest_postgres)" ] || missing+=(postgresql)
    need mariadb-install-db mariadb-server
    [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server)
}

# The servers refuse to run as root.
as_user() { # as_user USER COMMAND…
    local user=$1
    shift
    if [ "$(id -u)" -eq 0 ]; then
        cd "$folder" && exec setpriv --reuid "$user" --regid "$user" --init-groups -- "$@"
    else
        exec "$@"
    fi
}
mariadb=
clean_up() {
    (as_user postgres "$postgres/pg_ctl" -D "$folder/postgres" -m immediate stop) \
        >/dev/null 2>&1 || true
    [ -z "$mariadb" ] || { kill -KILL "$mariadb" && wait "$mariadb"; } 2>/dev/null || true
    rm -rf "$folder"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Sets TEST_POSTGRES_URL, TEST_POSTGRES_BIN, TEST_MYSQL_URL and TEST_MYSQL_SERVER.
start_servers() {
    folder=$(mktemp -d)
    postgres=$(newest_postgres)
    trap clean_up EXIT
    mkdir "$folder/postgres" "$folder/mariadb"
    chmod 755 "$folder"
    [ "$(id -u)" -ne 0 ] || chown postgres "$folder/postgres"
    [ "$(id -u)" -ne 0 ] || chown mysql "$folder/mariadb"
    (as_user postgres "$postgres/initdb" -D "$folder/postgres" -U hapax --auth=trust --encoding=UTF8 \
        --locale=C.UTF-8) >/dev/null
    export TEST_POSTGRES_BIN=$postgres
    port=$(free_port)
    (as_user postgres "$postgres/pg_ctl" -D "$folder/postgres" -w -l "$folder/postgres/log" start \
        -o "-p $port -k $folder/postgres -c listen_addresses=127.0.0.1 -c max_connections=200") >/dev/null
    export TEST_POSTGRES_URL="postgres://hapax@127.0.0.1:$port/postgres"

    export TEST_MYSQL_SERVER=/usr/sbin/mariadbd
    (as_user mysql mariadb-install-db --no-defaults --datadir="$folder/mariadb" --skip-test-db \
        --auth-root-authentication-method=normal) >/dev/null 2>&1
    port=$(free_port)
    (as_user mysql "$TEST_MYSQL_SERVER" --no-defaults --datadir="$folder/mariadb" --port="$port" \
        --bind-address=127.0.0.1 --socket="$folder/mariadb/socket" --skip-log-bin \
        --max-connections=200) >"$folder/mariadb.log" 2>&1 &
    mariadb=$!
    for _ in $(seq 600); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
        sleep 0.1
    done
    export TEST_MYSQL_URL="mysql://root@127.0.0.1:$port/mysql"
}
