// Command serve is a demo for tests in any language: serve --port P --postgres URL. POST /orders inserts one row into
// the table orders.
package main

import (
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	_ "github.com/jackc/pgx/v5/stdlib"
	semel "github.com/semel/semel/clients/go"
)

func main() {
	port := flag.String("port", "0", "where to listen on 127.0.0.1")
	url := flag.String("postgres", "", "the database")
	flag.Parse()
	db, err := sql.Open("pgx", *url)
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(10)
	const table = "CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)"
	if _, err := db.Exec(table); err != nil {
		log.Fatal(err)
	}
	once := semel.New(db, semel.Options{})
	route := semel.Route{
		Endpoint: "create-order",
		Identify: func(r *http.Request) (semel.Caller, error) {
			return semel.Caller{Principal: r.Header.Get("X-User")}, nil
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once.Handle(route, createOrder))
	listener, err := net.Listen("tcp", "127.0.0.1:"+*port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	log.Fatal(http.Serve(listener, mux))
}

func createOrder(tx *sql.Tx, w http.ResponseWriter, r *http.Request) error {
	var order struct{ Item string }
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	var id int64
	err := tx.QueryRowContext(r.Context(), "INSERT INTO orders (item) VALUES ($1) RETURNING id", order.Item).Scan(&id)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", id))
	w.WriteHeader(http.StatusCreated)
	_, err = fmt.Fprintf(w, `{"id":%d}`, id)
	return err
}
