// Generates text by a router's gRPC API: as a stream, or in one answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	tandem "tandem.example/tandemv1"
)

func main() {
	log.SetFlags(0)
	endpoint := flag.String("endpoint", "127.0.0.1:7001", "address of a router on this machine")
	once := flag.Bool("once", false, "one answer, no stream")
	prompt := flag.String("prompt", "Once upon a time", "the text to go on with")
	maxTokens := flag.Uint("max-tokens", 32, "most tokens of the output")
	seed := flag.Uint64("seed", 11, "makes the output repeatable")
	flag.Parse()

	// A machine's own routers need no TLS; elsewhere grpc.WithTransportCredentials(credentials.NewTLS(...)).
	connection, err := grpc.Dial(*endpoint, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+os.Getenv("TANDEM_TOKEN"))

	client := tandem.NewGenerationClient(connection)
	request := &tandem.GenerateRequest{
		Prompt:   &tandem.GenerateRequest_Text{Text: *prompt},
		Sampling: &tandem.SamplingParameters{Temperature: proto.Float32(0.8), Seed: seed},
		Stopping: &tandem.StopConditions{MaxTokens: proto.Uint32(uint32(*maxTokens))},
	}
	if *once {
		err = generateOnce(ctx, client, request)
	} else {
		err = stream(ctx, client, request)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// generateOnce prints the whole output when it is there.
func generateOnce(ctx context.Context, client tandem.GenerationClient, request *tandem.GenerateRequest) error {
	result, err := client.GenerateOnce(ctx, request)
	if err != nil {
		return err
	}
	fmt.Println(result.GetText())
	return nil
}

// stream prints the output as it comes, and what speculation did when it is over.
func stream(ctx context.Context, client tandem.GenerationClient, request *tandem.GenerateRequest) error {
	events, err := client.Generate(ctx, request)
	if err != nil {
		return err
	}
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// The getters of what an event is not give zero values.
		fmt.Print(event.GetChunk().GetText(), event.GetFinished().GetText())
		if finished := event.GetFinished(); finished != nil {
			fmt.Println()
			log.Printf("%d tokens, mean acceptance length %.2f", finished.GetUsage().GetCompletionTokens(),
				finished.GetSpeculation().GetMeanAcceptanceLength())
		}
	}
}
