package redisstore

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// URL says where the store is. Whatever shows it shows no password.
type URL string

// hidden stands for what stands before the servers.
const hidden = "[hidden]"

// MarshalText returns the URL without its user, its password and its parameters.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

func (u URL) String() string {
	scheme, rest, ok := strings.Cut(string(u), "://")
	if u == "" {
		return ""
	}
	if a, err := u.parse(); err != nil || !ok {
		// Where it cannot be read, nobody knows which part is the password.
		return hidden
	} else if a.user == "" && a.password == "" && a.sentinelUser == "" && a.sentinelPassword == "" {
		return string(u)
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		rest = hidden + rest[i:]
	}
	rest, parameters, _ := strings.Cut(rest, "?")
	if parameters != "" {
		rest += "?" + hidden
	}
	return scheme + "://" + rest
}

// address is what a URL says.
type address struct {
	servers []string // host:port, or the path of a socket
	socket  bool
	tls     bool
	master  string // what the sentinels call the master; empty: the servers are no sentinels
	cluster bool
	db      int

	user, password                 string
	sentinelUser, sentinelPassword string
}

const (
	maxServers   = 64
	maxDB        = 1 << 20
	serverPort   = "6379"
	sentinelPort = "26379"
)

// parse reads the URL. Its errors quote none of it: a password with a letter that
// should have been escaped can stand anywhere.
func (u URL) parse() (*address, error) {
	scheme, rest, ok := strings.Cut(string(u), "://")
	if !ok {
		return nil, errScheme
	}
	a := new(address)
	switch scheme {
	case "redis", "valkey":
	case "rediss", "valkeys":
		a.tls = true
	case "redis+sentinel", "valkey+sentinel":
		a.master = "?"
	case "rediss+sentinel", "valkeys+sentinel":
		a.master, a.tls = "?", true
	case "redis+cluster", "valkey+cluster":
		a.cluster = true
	case "rediss+cluster", "valkeys+cluster":
		a.cluster, a.tls = true, true
	case "unix":
		a.socket = true
	default:
		return nil, errScheme
	}
	if strings.Contains(rest, hidden) {
		return nil, errors.New("holds " + hidden + ", which stands for what is not shown; write that")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.Contains(rest, "#") || strings.Contains(query, "#") {
		return nil, errors.New("has a #, which a URL of a store has no use for; inside a password it is written %23")
	}
	if err := a.parameters(query); err != nil {
		return nil, err
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		user, password, _ := strings.Cut(rest[:i], ":")
		if strings.ContainsAny(rest[:i], "/@") || !unescape(&user) || !unescape(&password) {
			return nil, errors.New("the user or the password has a letter that must be escaped: / is written %2F, @ %40, : %3A, # %23, ? %3F, % %25")
		}
		a.user, a.password = user, password
		rest = rest[i+1:]
	}
	if a.socket {
		return a, a.socketPath(rest)
	}
	servers, where, _ := strings.Cut(rest, "/")
	if err := a.list(servers); err != nil {
		return nil, err
	}
	return a, a.place(where)
}

var errScheme = errors.New("begins with none of redis://, rediss://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster:// and unix:// " +
	"(or valkey in place of redis); write one, as in redis://127.0.0.1:6379")

func unescape(s *string) bool {
	plain, err := url.PathUnescape(*s)
	*s = plain
	return err == nil
}

// parameters reads what stands behind the question mark.
func (a *address) parameters(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("its parameters, behind the ?, cannot be read")
	}
	for name, value := range values {
		switch {
		case len(value) > 1:
			return errors.New("has a parameter twice")
		case name == "sentinel_user" && a.master != "":
			a.sentinelUser = value[0]
		case name == "sentinel_password" && a.master != "":
			a.sentinelPassword = value[0]
		case name == "db" && a.socket:
			if err := a.number(value[0]); err != nil {
				return err
			}
		default:
			return errors.New("has a parameter that is none; allowed are sentinel_user and sentinel_password with +sentinel, and db with unix://")
		}
	}
	return nil
}

// list reads the servers.
func (a *address) list(servers string) error {
	port := serverPort
	if a.master != "" {
		port = sentinelPort
	}
	for server := range strings.SplitSeq(servers, ",") {
		host, number := server, port
		if h, n, err := net.SplitHostPort(server); err == nil {
			host, number = h, n
		} else if strings.HasPrefix(server, "[") && strings.HasSuffix(server, "]") {
			host = server[1 : len(server)-1]
		} else if strings.Contains(server, ":") {
			host = "" // an IPv6 address, whose port nobody could tell
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || !validHost(host) {
			return errors.New("names no server, or one that is none; write host or host:port, an IPv6 address as [2001:db8::1]:6379, and several with commas between them")
		}
		a.servers = append(a.servers, net.JoinHostPort(host, number))
	}
	switch {
	case len(a.servers) > maxServers:
		return errors.New("names more than 64 servers")
	case len(a.servers) > 1 && a.master == "" && !a.cluster:
		return errors.New("names several servers, which redis:// does not choose between; redis+sentinel://host,host/name asks sentinels for the master, redis+cluster://host,host is a cluster")
	}
	return nil
}

func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host != "" && len(host) <= 253 && strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// place reads what stands behind the servers.
func (a *address) place(where string) error {
	where, db, numbered := where, "", false
	switch {
	case a.master != "":
		where, db, numbered = strings.Cut(where, "/")
		if where == "" || strings.ContainsAny(where, " \t\r\n") {
			return errors.New("does not say what the sentinels call the master; write it behind the servers, as in redis+sentinel://host,host/mymaster")
		}
		if !unescape(&where) {
			return errors.New("the name of the master cannot be read")
		}
		a.master = where
	case a.cluster:
		if where != "" && where != "0" {
			return errors.New("names a database, and a cluster has none but 0")
		}
	default:
		db, numbered = where, where != ""
	}
	if numbered {
		return a.number(db)
	}
	return nil
}

func (a *address) number(db string) error {
	n, err := strconv.ParseUint(db, 10, 32)
	if err != nil || n > maxDB {
		return errors.New("the number of the database is none; write it as in redis://host:6379/1")
	}
	a.db = int(n)
	return nil
}

func (a *address) socketPath(p string) error {
	if !unescape(&p) || !path.IsAbs(p) || strings.ContainsRune(p, 0) {
		return errors.New("the path of the socket does not begin at the root; write it as in unix:///run/redis/redis.sock")
	}
	a.servers = []string{p}
	return nil
}
