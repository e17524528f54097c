package certs

// Config is the certificates section of the policy.
type Config struct {
	Files      []FilePair `key:"files" default:"[]" doc:"certificates from files; a changed pair is picked up by itself"`
	SelfIssued []string   `key:"self_issued" default:"[]" doc:"names for a certificate of our own making, for development"`
}

// FilePair names the PEM files of one certificate chain and its key.
type FilePair struct {
	Certificate string `key:"certificate" required:"true" path:"true" doc:"PEM file: the certificate, then its intermediates"`
	Key         string `key:"key" required:"true" path:"true" doc:"PEM file: the private key"`
}
