package mailbox

const childJob = "MAILBOX_TEST_CHILD"

func child(string) int { return 0 }
