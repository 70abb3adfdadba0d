package keyring_test

import (
	"crypto/ed25519"
	"fmt"
	"log"
	"time"

	"github.com/parley-hub/parley/keyring"
)

func Example() {
	ring, err := keyring.Open(keyring.Options{}) // in memory; Dir and Passphrase keep it
	if err != nil {
		log.Fatal(err)
	}
	signer, err := ring.Ensure(keyring.New{Owner: "weather", Purpose: "samvad", Algorithm: keyring.Ed25519})
	if err != nil {
		log.Fatal(err)
	}
	sig, err := signer.Sign([]byte("21 °C"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("verifies:", ed25519.Verify(signer.Public(), []byte("21 °C"), sig))

	if _, err := ring.Rotate("weather", "samvad", 24*time.Hour); err != nil {
		log.Fatal(err)
	}
	for _, k := range ring.Keys("weather", "samvad") {
		fmt.Println(k.State)
	}
	// Output:
	// verifies: true
	// active
	// retiring
}
