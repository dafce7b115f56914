// echo server IP PORT: a goroutine for each connection sends everything back; "ready" when it listens.
// echo client IP PORT CONNECTIONS BYTES SEED: streams ended by a half-close, fifty at a time, each must come back. "good".
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

func number(i int) int {
	n, err := strconv.Atoi(os.Args[i])
	if err != nil {
		panic(err)
	}
	return n
}

func serve(address string) error {
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func exchange(address string, size int, seed int64) error {
	c, err := net.DialTimeout("tcp4", address, 20*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	data := make([]byte, size)
	rand.New(rand.NewSource(seed)).Read(data)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		sent <- err
	}()
	back, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if !bytes.Equal(back, data) {
		return fmt.Errorf("seed %d: %d of %d bytes came back, or others", seed, len(back), size)
	}
	return nil
}

func load(address string, connections, size, seed int) error {
	var group sync.WaitGroup
	gate := make(chan bool, 50)
	failed := make(chan error, connections)
	for i := 0; i < connections; i++ {
		group.Add(1)
		gate <- true
		go func(i int) {
			defer group.Done()
			if err := exchange(address, size, int64(seed+i)); err != nil {
				failed <- err
			}
			<-gate
		}(i)
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		fmt.Println("good")
		return nil
	}
}

func main() {
	address := net.JoinHostPort(os.Args[2], os.Args[3])
	var err error
	if os.Args[1] == "server" {
		err = serve(address)
	} else {
		err = load(address, number(4), number(5), number(6))
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}
