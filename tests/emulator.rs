//! The real client against the real emulator.

mod common;

use std::time::{Duration, Instant};

use common::{block_on, client, client_with, credentials, emulator, left_in};
use hapax::cmq::signature::SignatureMethod;
use hapax::cmq::{CmqError, Credentials, ErrorClass};
use hapax::emulator::{Emulator, EmulatorOptions};

#[test]
fn messages_are_sent_received_and_deleted_one_by_one_and_in_batches() {
    block_on(async {
        let emulator = emulator(&["q"]);
        for method in [SignatureMethod::HmacSha256, SignatureMethod::HmacSha1] {
            let client = client_with(&emulator.endpoint(), credentials(), method);
            let id = client.send_message("q", "@a=1&b é😀+%", 0).await.unwrap();
            let message = client.receive_message("q", 0).await.unwrap().unwrap();
            assert_eq!((message.msg_id, message.msg_body.as_str()), (id, "@a=1&b é😀+%"));
            assert_eq!(message.next_visible_time - message.enqueue_time, 30);
            client.delete_message("q", &message.receipt_handle).await.unwrap();
            let bodies: Vec<String> = (0..16).map(|n| format!("body {n}")).collect();
            let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
            let ids = client.batch_send_message("q", &bodies, 0).await.unwrap();
            let messages = client.batch_receive_message("q", 16, 0).await.unwrap();
            assert_eq!(messages.iter().map(|m| m.msg_id.clone()).collect::<Vec<_>>(), ids);
            let handles: Vec<&str> = messages.iter().map(|m| m.receipt_handle.as_str()).collect();
            assert_eq!(client.batch_delete_message("q", &handles).await.unwrap(), []);
            let failures = client.batch_delete_message("q", &handles).await.unwrap();
            assert_eq!(failures.len(), 16, "all handles are dead by now");
            assert_eq!(left_in(&emulator, "q"), 0);
            assert_eq!(client.receive_message("q", 0).await.unwrap(), None);
            assert_eq!(client.batch_receive_message("q", 16, 0).await.unwrap(), []);
        }
        let client = client(&emulator.endpoint());
        assert_eq!(client.query_queue_route("q").await.unwrap(), [emulator.endpoint()]);
    });
}

#[test]
fn a_long_poll_answers_as_soon_as_a_message_arrives() {
    block_on(async {
        let emulator = emulator(&["q:visibility_timeout=1"]);
        let client = client(&emulator.endpoint());
        let (received, sent) = tokio::join!(client.receive_message("q", 20), async {
            client.receive_message("q", 0).await.unwrap();
            client.send_message("q", "x", 0).await.unwrap();
            Instant::now()
        });
        assert!(received.unwrap().is_some());
        assert!(sent.elapsed() < Duration::from_secs(10));
        // It also wakes for a message that becomes visible again, and for one whose delay is over.
        assert!(client.receive_message("q", 20).await.unwrap().is_some());
        client.send_message("q", "y", 1).await.unwrap();
        let message = client.receive_message("q", 20).await.unwrap().unwrap();
        assert!(["x", "y"].contains(&message.msg_body.as_str()));
    });
}

#[test]
fn refusals_carry_their_codes_and_classes() {
    block_on(async {
        let emulator = emulator(&["q"]);
        let client = client(&emulator.endpoint());
        let other = Credentials::new("AKIDtest".into(), "wrong".to_owned().into(), None);
        let stranger = client_with(&emulator.endpoint(), other, SignatureMethod::HmacSha256);
        let token = Some("t".to_owned().into());
        let with_token =
            Credentials::new("AKIDtest".into(), "test-secret-key".to_owned().into(), token);
        let with_token = client_with(&emulator.endpoint(), with_token, SignatureMethod::HmacSha256);
        for (result, code, class) in [
            (client.send_message("none", "x", 0).await, 4440, ErrorClass::NoSuchQueue),
            (client.send_message("1", "x", 0).await, 4000, ErrorClass::Permanent),
            (client.send_message("q", "", 0).await, 4000, ErrorClass::Permanent),
            (client.send_message("q", "x", 99_999).await, 4000, ErrorClass::Permanent),
            (stranger.send_message("q", "x", 0).await, 4100, ErrorClass::Authentication),
            (with_token.send_message("q", "x", 0).await, 4100, ErrorClass::Authentication),
        ] {
            let error = result.unwrap_err();
            let given = match &error {
                CmqError::Api { code, .. } => *code,
                other => panic!("{other}"),
            };
            assert_eq!((given, error.class()), (code, class), "{error}");
            assert!(!error.is_retryable());
        }
        let too_long = "x".repeat((1 << 20) + 1);
        assert!(client.send_message("q", &too_long, 0).await.is_err());
        let error = client.delete_message("q", "nonsense").await.unwrap_err();
        assert!(error.to_string().contains("4000"), "{error}");
        assert_eq!(left_in(&emulator, "q"), 0);
    });
}

#[test]
fn nobody_listening_is_a_retryable_error_that_names_the_endpoint() {
    block_on(async {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = client(&format!("http://127.0.0.1:{port}"))
            .send_message("q", "x", 0)
            .await
            .unwrap_err();
        assert!(error.is_retryable());
        let text = error.to_string();
        assert!(text.contains(&format!("127.0.0.1:{port}")) && text.contains("refused"), "{text}");
    });
}

#[test]
fn a_name_that_does_not_resolve_is_a_retryable_error() {
    block_on(async {
        let client = client("http://no-such-host.invalid");
        let error = client.send_message("q", "x", 0).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    });
}

#[test]
fn raw_requests_are_answered_as_the_sdks_send_them() {
    block_on(async {
        let emulator = Emulator::start(EmulatorOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            credentials: None,
            queues: vec!["q".parse().unwrap()],
            topics: vec!["t:q=red".parse().unwrap()],
        })
        .unwrap();
        let endpoint = emulator.endpoint();
        let http = reqwest::Client::new();
        let get = async |query: &str| -> serde_json::Value {
            let answer = http.get(format!("{endpoint}/v2/index.php?{query}")).send().await.unwrap();
            assert_eq!(answer.status(), 200);
            serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
        };
        // A form without Content-Type, at either path, with an unknown parameter.
        let form = "Action=BatchSendMessage&queueName=q&msgBody.0=a&msgBody.1=b&UserX=1";
        for path in ["/", "/v2/index.php"] {
            let answer = http.post(format!("{endpoint}{path}")).body(form).send().await.unwrap();
            let text = String::from_utf8(answer.bytes().await.unwrap().to_vec()).unwrap();
            assert!(text.contains("\"code\":0"), "{text}");
        }
        assert_eq!(left_in(&emulator, "q"), 4);
        for (query, code, module) in [
            ("Action=ReceiveMessage", 4000, "(10390)"),
            ("queueName=q", 4000, "(10390)"),
            ("Action=Nonsense", 4000, "(10280)"),
            ("Action=BatchSendMessage&queueName=q&msgBody.1=a&msgBody.3=b", 4000, "(10380)"),
            ("Action=BatchReceiveMessage&queueName=q&numOfMsg=17", 4000, "(10350)"),
            ("Action=BatchReceiveMessage&queueName=q&numOfMsg=x", 4000, "(10360)"),
            ("Action=BatchReceiveMessage&queueName=q", 4000, "(10390)"),
            ("Action=CreateQueue&queueName=q&visibilityTimeout=5", 4000, "(10110)"),
            ("Action=SetQueueAttributes&queueName=q&visibilityTimeout=0", 4000, "(10350)"),
            ("Action=RewindQueue&queueName=q&startConsumeTime=0", 4000, "(10110)"),
            ("Action=DeleteQueue&queueName=none", 4440, "queue is not existed"),
            ("Action=PublishMessage&topicName=none&msgBody=x", 4440, "topic is not existed"),
        ] {
            let answer = get(query).await;
            assert_eq!(answer["code"], code, "{query}: {answer}");
            assert!(answer["message"].as_str().unwrap().contains(module), "{query}: {answer}");
        }
        assert_eq!(
            get("Action=PublishMessage&topicName=t&msgBody=x&msgTag.1=red").await["code"],
            0
        );
        assert_eq!(left_in(&emulator, "q"), 5);
        let created =
            get("Action=CreateQueue&queueName=new&visibilityTimeout=5&rewindSeconds=60").await;
        assert_eq!(created["code"], 0, "{created}");
        let set =
            get("Action=SetQueueAttributes&queueName=new&pollingWaitSeconds=0&visibilityTimeout=7")
                .await;
        assert_eq!(set["code"], 0, "{set}");
        let attributes = get("Action=GetQueueAttributes&queueName=new").await;
        assert_eq!(
            (&attributes["visibilityTimeout"], &attributes["rewindSeconds"]),
            (&7.into(), &60.into())
        );
        let list = get("Action=ListQueue&limit=1&offset=0").await;
        assert_eq!(
            (&list["totalCount"], &list["queueList"][0]["queueName"]),
            (&2.into(), &"new".into())
        );
        assert_eq!(get("Action=SendMessage&queueName=new&msgBody=x").await["code"], 0);
        let received = get("Action=ReceiveMessage&queueName=new").await;
        let handle: String = url::form_urlencoded::byte_serialize(
            received["receiptHandle"].as_str().unwrap().as_bytes(),
        )
        .collect();
        let deleted =
            get(&format!("Action=DeleteMessage&queueName=new&receiptHandle={handle}")).await;
        assert_eq!(deleted["code"], 0, "{deleted}");
        assert_eq!(
            get("Action=ReceiveMessage&queueName=new").await["message"],
            "(10200)no message"
        );
        assert_eq!(get("Action=RewindQueue&queueName=new&startConsumeTime=0").await["code"], 0);
        assert_eq!(get("Action=ReceiveMessage&queueName=new").await["msgId"], received["msgId"]);
        assert_eq!(get("Action=DeleteQueue&queueName=new").await["code"], 0);
        assert_eq!(get("Action=ReceiveMessage&queueName=new").await["code"], 4440);
    });
}
