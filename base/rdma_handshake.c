// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/rdma_handshake.h"

/* Equal in length, so that no two inputs of the HMAC are equal when joined. */
static const char label_client[] = "rdma/client/1";
static const char label_server[] = "rdma/server/1";
_Static_assert(sizeof(label_client) == sizeof(label_server), "labels");

static int compute_mac(const struct rdma_handshake *handshake, const char *label,
                       uint8_t ret_mac[RDMA_MAC_BYTES])
{
        const size_t header = sizeof(struct rdma_frame);
        uint8_t input[sizeof(label_client) + sizeof(handshake->hello) +
                      sizeof(handshake->challenge)];
        size_t at = sizeof(label_client);
        unsigned int length = RDMA_MAC_BYTES;

        /* Without the frames' headers, which tell of buffers. */
        memcpy(input, label, at);
        memcpy(input + at, (const uint8_t *)&handshake->hello + header,
               sizeof(handshake->hello) - header);
        at += sizeof(handshake->hello) - header;
        memcpy(input + at, (const uint8_t *)&handshake->challenge + header,
               sizeof(handshake->challenge) - header);
        at += sizeof(handshake->challenge) - header;
        if (!HMAC(EVP_sha256(), handshake->secret.bytes, (int)handshake->secret.length, input, at,
                  ret_mac, &length))
                return err_raise(-EIO);
        return 0;
}

static void fail(struct rdma_handshake *handshake, enum rdma_end end, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

static void fail(struct rdma_handshake *handshake, enum rdma_end end, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(handshake->why.text, sizeof(handshake->why.text), format, arguments);
        va_end(arguments);
        handshake->end = end;
        handshake->state = RDMA_HANDSHAKE_FAILED;
        rdma_handshake_wipe(handshake);
}

static void put(struct rdma_handshake_answer *answer, const void *frame, size_t length)
{
        memcpy(answer->bytes, frame, length);
        answer->length = length;
}

/* What the server tells a client that it does not let in. */
static void put_refusal(const struct rdma_handshake *handshake,
                        struct rdma_handshake_answer *answer)
{
        struct rdma_frame_refused refused = {.end = handshake->end};

        rdma_frame_init(&refused.frame, RDMA_FRAME_REFUSED, sizeof(refused));
        snprintf(refused.why, sizeof(refused.why), "%.*s", (int)sizeof(refused.why) - 1,
                 handshake->why.text);
        put(answer, &refused, sizeof(refused));
}

static void put_proof(struct rdma_handshake *handshake, enum rdma_frame_kind kind,
                      const char *label, struct rdma_handshake_answer *answer)
{
        struct rdma_frame_proof proof = {0};

        rdma_frame_init(&proof.frame, kind, sizeof(proof));
        if (compute_mac(handshake, label, proof.mac) < 0)
                fail(handshake, RDMA_END_DEVICE, "libcrypto cannot compute an HMAC");
        else
                put(answer, &proof, sizeof(proof));
}

static bool is_proof(const struct rdma_handshake *handshake, const char *label,
                     const struct rdma_frame_proof *proof)
{
        uint8_t expected[RDMA_MAC_BYTES];

        return !compute_mac(handshake, label, expected) &&
               !CRYPTO_memcmp(expected, proof->mac, sizeof(expected));
}

/* False, and failed: other software, or another time of it. */
static bool speaks_as_we_do(struct rdma_handshake *handshake, uint32_t protocol, uint16_t major,
                            uint16_t minor)
{
        const struct rdma_identity *own = &handshake->self.identity;

        if (protocol != own->protocol || major != own->major) {
                fail(handshake, RDMA_END_UNSUPPORTED,
                     "protocol %08x version %u meets protocol %08x version %u: both sides have "
                     "to be of one version",
                     protocol, major, own->protocol, own->major);
                return false;
        }
        handshake->minor = minor < own->minor ? minor : own->minor;
        return true;
}

int rdma_handshake_start(struct rdma_handshake *handshake, const struct rdma_handshake_self *self,
                         const char *domain, const uint8_t expected_id[RDMA_ID_BYTES],
                         struct rdma_handshake_answer *ret_answer, struct why *why)
{
        struct rdma_frame_hello hello = {
                .protocol = self->identity.protocol,
                .major = self->identity.major,
                .minor = self->identity.minor,
                .n_credits = self->n_credits,
                .message_bytes = self->message_bytes,
        };

        *handshake = (struct rdma_handshake){.self = *self};
        ret_answer->length = 0;
        if (strlen(domain) >= sizeof(hello.domain) ||
            self->find_secret(self->user, domain, &handshake->secret) ||
            handshake->secret.length < RDMA_SECRET_MIN) {
                rdma_handshake_wipe(handshake);
                why_set(why, "no secret of at least %u bytes for domain \"%.*s\"", RDMA_SECRET_MIN,
                        (int)sizeof(hello.domain), domain);
                return RDMA_E_DENIED;
        }
        if (RAND_bytes(hello.nonce, sizeof(hello.nonce)) != 1)
                return err_raise(-EIO);
        rdma_frame_init(&hello.frame, RDMA_FRAME_HELLO, sizeof(hello));
        memcpy(hello.id, self->identity.id, sizeof(hello.id));
        memcpy(hello.expected_id, expected_id, sizeof(hello.expected_id));
        strcpy(hello.domain, domain);
        handshake->hello = hello;
        handshake->state = RDMA_HANDSHAKE_AWAITING_CHALLENGE;
        put(ret_answer, &hello, sizeof(hello));
        return 0;
}

void rdma_handshake_await(struct rdma_handshake *handshake, const struct rdma_handshake_self *self)
{
        *handshake = (struct rdma_handshake){
                .self = *self,
                .state = RDMA_HANDSHAKE_AWAITING_HELLO,
        };
}

static void look_up_secret(struct rdma_handshake *handshake)
{
        const struct rdma_handshake_self *self = &handshake->self;

        if (!self->find_secret(self->user, handshake->hello.domain, &handshake->secret) &&
            handshake->secret.length >= RDMA_SECRET_MIN)
                return;
        handshake->secret.length = RDMA_SECRET_MAX;
        if (RAND_bytes(handshake->secret.bytes, RDMA_SECRET_MAX) != 1)
                fail(handshake, RDMA_END_DEVICE, "libcrypto has no random numbers");
}

static void take_hello(struct rdma_handshake *handshake, const struct rdma_frame_hello *hello,
                       struct rdma_handshake_answer *answer)
{
        const struct rdma_handshake_self *self = &handshake->self;
        struct rdma_frame_challenge *challenge = &handshake->challenge;

        handshake->hello = *hello;
        memcpy(handshake->peer_id, hello->id, sizeof(hello->id));
        handshake->peer_credits = hello->n_credits;
        handshake->peer_message_bytes = hello->message_bytes;
        if (!speaks_as_we_do(handshake, hello->protocol, hello->major, hello->minor))
                return;
        look_up_secret(handshake);
        if (handshake->state == RDMA_HANDSHAKE_FAILED)
                return;
        rdma_frame_init(&challenge->frame, RDMA_FRAME_CHALLENGE, sizeof(*challenge));
        challenge->protocol = self->identity.protocol;
        challenge->major = self->identity.major;
        challenge->minor = self->identity.minor;
        memcpy(challenge->id, self->identity.id, sizeof(challenge->id));
        challenge->n_credits = self->n_credits;
        challenge->message_bytes = self->message_bytes;
        if (RAND_bytes(challenge->nonce, sizeof(challenge->nonce)) != 1) {
                fail(handshake, RDMA_END_DEVICE, "libcrypto has no random numbers");
                return;
        }
        handshake->state = RDMA_HANDSHAKE_AWAITING_PROOF;
        put(answer, challenge, sizeof(*challenge));
}

/* Is this the run of the server that the client means? */
static bool is_expected(const struct rdma_handshake *handshake, const uint8_t id[RDMA_ID_BYTES])
{
        static const uint8_t any[RDMA_ID_BYTES];
        const uint8_t *expected = handshake->hello.expected_id;

        return !memcmp(expected, any, sizeof(any)) || !memcmp(expected, id, sizeof(any));
}

static const char stale[] = "the server has been started anew since: it is not the one meant";

static void take_challenge(struct rdma_handshake *handshake,
                           const struct rdma_frame_challenge *challenge,
                           struct rdma_handshake_answer *answer)
{
        handshake->challenge = *challenge;
        memcpy(handshake->peer_id, challenge->id, sizeof(challenge->id));
        handshake->peer_credits = challenge->n_credits;
        handshake->peer_message_bytes = challenge->message_bytes;
        if (!speaks_as_we_do(handshake, challenge->protocol, challenge->major, challenge->minor))
                return;
        if (!is_expected(handshake, challenge->id)) {
                fail(handshake, RDMA_END_STALE, "%s", stale);
                return;
        }
        handshake->state = RDMA_HANDSHAKE_AWAITING_WELCOME;
        put_proof(handshake, RDMA_FRAME_PROOF, label_client, answer);
}

static void finish(struct rdma_handshake *handshake)
{
        rdma_handshake_wipe(handshake);
        handshake->state = RDMA_HANDSHAKE_DONE;
}

static void take_proof(struct rdma_handshake *handshake, const struct rdma_frame_proof *proof,
                       struct rdma_handshake_answer *answer)
{
        if (!is_proof(handshake, label_client, proof)) {
                fail(handshake, RDMA_END_DENIED, "no domain \"%s\" here, or its secret is another",
                     handshake->hello.domain);
                return;
        }
        if (!is_expected(handshake, handshake->self.identity.id)) {
                fail(handshake, RDMA_END_STALE, "%s", stale);
                return;
        }
        put_proof(handshake, RDMA_FRAME_WELCOME, label_server, answer);
        if (handshake->state != RDMA_HANDSHAKE_FAILED)
                finish(handshake);
}

static void take_welcome(struct rdma_handshake *handshake, const struct rdma_frame_proof *proof)
{
        if (is_proof(handshake, label_server, proof))
                finish(handshake);
        else
                fail(handshake, RDMA_END_DENIED,
                     "the server does not know the secret of domain \"%s\"",
                     handshake->hello.domain);
}

/* A server that refuses has not proved itself: its words are worth no more than a hint. */
static void take_refused(struct rdma_handshake *handshake, const struct rdma_frame_refused *refused)
{
        enum rdma_end end = refused->end < RDMA_N_ENDS ? refused->end : RDMA_END_PROTOCOL;

        fail(handshake, end, "refused by the server: %s", refused->why);
}

static bool is_client(const struct rdma_handshake *handshake)
{
        return handshake->state == RDMA_HANDSHAKE_AWAITING_CHALLENGE ||
               handshake->state == RDMA_HANDSHAKE_AWAITING_WELCOME;
}

void rdma_handshake_step(struct rdma_handshake *handshake, const void *frame,
                         struct rdma_handshake_answer *ret_answer)
{
        const struct rdma_frame *header = frame;
        enum rdma_handshake_state state = handshake->state;
        bool is_server =
                state == RDMA_HANDSHAKE_AWAITING_HELLO || state == RDMA_HANDSHAKE_AWAITING_PROOF;

        ret_answer->length = 0;
        if (state == RDMA_HANDSHAKE_AWAITING_HELLO && header->kind == RDMA_FRAME_HELLO)
                take_hello(handshake, frame, ret_answer);
        else if (state == RDMA_HANDSHAKE_AWAITING_CHALLENGE && header->kind == RDMA_FRAME_CHALLENGE)
                take_challenge(handshake, frame, ret_answer);
        else if (state == RDMA_HANDSHAKE_AWAITING_PROOF && header->kind == RDMA_FRAME_PROOF)
                take_proof(handshake, frame, ret_answer);
        else if (state == RDMA_HANDSHAKE_AWAITING_WELCOME && header->kind == RDMA_FRAME_WELCOME)
                take_welcome(handshake, frame);
        else if (is_client(handshake) && header->kind == RDMA_FRAME_REFUSED)
                take_refused(handshake, frame);
        else
                fail(handshake, RDMA_END_PROTOCOL, "a frame of kind %u in the handshake",
                     header->kind);
        if (handshake->state == RDMA_HANDSHAKE_FAILED && is_server && !ret_answer->length)
                put_refusal(handshake, ret_answer);
}

void rdma_handshake_wipe(struct rdma_handshake *handshake)
{
        OPENSSL_cleanse(&handshake->secret, sizeof(handshake->secret));
}
