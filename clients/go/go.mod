module github.com/semel/semel/clients/go

go 1.23
