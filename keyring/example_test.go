package keyring_test

import (
	"crypto/ed25519"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/parley-hub/parley/keyring"
)

// Create a key that is stored in a directory, and sign with it.
func Example() {
	dir, err := os.MkdirTemp("", "keys")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ring, err := keyring.Open(keyring.Options{Dir: dir}) // set Passphrase to encrypt it
	if err != nil {
		log.Fatal(err)
	}
	defer ring.Close()
	signer, err := ring.Ensure(keyring.New{Owner: "weather", Purpose: "samvad", Algorithm: keyring.Ed25519})
	if err != nil {
		log.Fatal(err)
	}
	sig, err := signer.Sign([]byte("21 °C"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("verifies:", ed25519.Verify(signer.Public(), []byte("21 °C"), sig))
	// Output:
	// verifies: true
}

// Replace a key. The old one stays valid for a day.
func ExampleRing_Rotate() {
	ring, err := keyring.Open(keyring.Options{}) // in memory
	if err != nil {
		log.Fatal(err)
	}
	if _, err := ring.Create(keyring.New{Owner: "weather", Purpose: "samvad", Algorithm: keyring.Ed25519}); err != nil {
		log.Fatal(err)
	}
	if _, err := ring.Rotate("weather", "samvad", "test", 24*time.Hour); err != nil {
		log.Fatal(err)
	}
	for _, k := range ring.Keys("weather", "samvad") {
		fmt.Println(k.State)
	}
	// Output:
	// active
	// retiring
}

// Verify the signature of an agent whose public key is enrolled.
func ExampleRing_Enroll() {
	ring, err := keyring.Open(keyring.Options{})
	if err != nil {
		log.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := ring.Enroll(keyring.Enrolled{
		Agent: "weather", Purpose: "samvad", Algorithm: keyring.Ed25519, Public: public, By: "ada",
	}); err != nil {
		log.Fatal(err)
	}
	message := []byte("21 °C")
	sig := ed25519.Sign(private, message)
	for _, e := range ring.Enrolled("weather", "samvad") {
		fmt.Println(e.By, "vouches for it:", ed25519.Verify(e.Public, message, sig))
	}
	// Output:
	// ada vouches for it: true
}
